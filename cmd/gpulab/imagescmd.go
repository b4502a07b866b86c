package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
)

func newImages(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "images", Short: "Container images for notebooks: list, import, pull, remove",
		Long: `Container images that notebooks can start from. A profile names one with the key
"image" in gpulab's configuration. gpulab's own images come with it.`,
		Example: "  sudo gpulab images list\n  sudo gpulab images import torch.tar\n  sudo gpulab images pull " +
			"quay.io/jupyter/pytorch-notebook:cuda12",
	}
	c.AddCommand(newImagesList(a), newImagesImport(a), newImagesPull(a), newImagesRemove(a))
	return c
}

func newImagesList(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List the images on this machine",
		Example: "  sudo gpulab images list\n  sudo gpulab images list --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			list, err := a.client().Images(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), list)
			}
			return printImages(c.OutOrStdout(), list)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printImages(w io.Writer, list []ctl.Image) error {
	rows := [][]string{{"IMAGE", "SIZE", "NEEDS", "STAYS", "PROFILES"}}
	for _, img := range list {
		needs, stays := "?", "until the disk is short"
		if img.Needs != nil {
			needs = "–"
			if *img.Needs != "" {
				needs = visibly(*img.Needs)
			}
		}
		switch {
		case img.Own:
			stays = "part of gpulab"
		case img.Pinned:
			stays = "until removed"
		}
		profiles := strings.Join(img.Profiles, ", ")
		if profiles == "" {
			profiles = "–"
		}
		rows = append(rows, []string{img.Ref, megabytes(img.Size), needs, stays, profiles})
	}
	return table(w, rows)
}

func megabytes(n int64) string {
	if n < 1e9 {
		return fmt.Sprintf("%.0f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}

func newImagesImport(a *app) *cobra.Command {
	var as string
	c := &cobra.Command{
		Use: "import FILE.tar", Short: "Bring in an image from a file",
		Long: `Bring in an image from a file, as "docker save -o FILE.tar IMAGE" or an OCI archive
holds it; "-" reads standard input. The image stays until it is removed. A file
that is broken or only half read leaves nothing behind.`,
		Example: "  sudo gpulab images import torch.tar\n  sudo gpulab images import --as lab.example/torch:1 torch.tar",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			file, size, err := openArchive(c, args[0], "an image is one tar file")
			if err != nil {
				return err
			}
			defer file.Close()
			line := progressLine{out: c.ErrOrStderr(), live: isTerminal(c.ErrOrStderr())}
			list, err := a.client().ImportImage(c.Context(), &countingReader{r: file, at: func(n int64) {
				if n == size {
					line.say("unpacking")
				} else {
					line.say("reading " + progress(n, size))
				}
			}}, as)
			line.clear()
			if c.Context().Err() != nil {
				return errors.New("interrupted; the image was not imported")
			}
			for _, img := range list {
				fmt.Fprintf(c.OutOrStdout(), "%s is on this machine.%s\n", img.Ref, needsSentence(img))
			}
			return err
		},
	}
	c.Flags().StringVar(&as, "as", "", "name for the image instead of the one in the file")
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"tar"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return c
}

// openArchive opens a file, "-" being standard input, and tells its size, 0
// where that is not known. what says what would have been right of a folder.
func openArchive(c *cobra.Command, name, what string) (io.ReadCloser, int64, error) {
	if name == "-" {
		return io.NopCloser(c.InOrStdin()), 0, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a folder; %s", name, what)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	if !info.Mode().IsRegular() {
		return f, 0, nil
	}
	return f, info.Size(), nil
}

func needsSentence(img ctl.Image) string {
	if img.Needs == nil || *img.Needs == "" {
		return ""
	}
	return " It needs " + visibly(*img.Needs) + "."
}

func newImagesPull(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "pull IMAGE", Short: "Load an image from its registry",
		Long: `Load an image from its registry, so that the first notebook does not wait for
it. It stays until it is removed. Interrupted and run again, it goes on.`,
		Example: "  sudo gpulab images pull quay.io/jupyter/pytorch-notebook:cuda12",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			line := progressLine{out: c.ErrOrStderr(), live: isTerminal(c.ErrOrStderr())}
			defer line.clear()
			err := a.client().PullImage(c.Context(), args[0], func(p ctl.Pull) error {
				switch {
				case p.Image != nil:
					line.clear()
					_, err := fmt.Fprintf(c.OutOrStdout(), "%s is on this machine.%s\n", p.Image.Ref, needsSentence(*p.Image))
					return err
				case p.Unpacking:
					line.say("unpacking")
				default:
					line.say("loading " + progress(p.Done, p.Total))
				}
				return nil
			})
			if c.Context().Err() != nil {
				return errors.New("interrupted; run it again to go on")
			}
			return err
		},
	}
}

func newImagesRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "remove IMAGE", Short: "Remove an image from this machine",
		Long: `Remove an image from this machine. gpulab's own stay, and so do those that a
profile names or a notebook runs on.`,
		Example: "  sudo gpulab images remove lab.example/torch:1",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var refs []string
			if list, err := a.client().Images(c.Context()); err == nil && len(args) == 0 {
				for _, img := range list {
					if !img.Own {
						refs = append(refs, img.Ref)
					}
				}
			}
			return refs, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if err := a.client().RemoveImage(c.Context(), args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "%s is removed.\n", args[0])
			return err
		},
	}
}

// countingReader tells how much of a file has been read.
type countingReader struct {
	r  io.Reader
	n  int64
	at func(n int64)
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.n += int64(n)
	r.at(r.n)
	return n, err
}

// progress says how much of something has been done.
func progress(done, total int64) string {
	if total <= 0 {
		return megabytes(done)
	}
	return fmt.Sprintf("%s of %s (%d %%)", megabytes(done), megabytes(total), 100*done/total)
}

// progressLine is one line that changes on a terminal; elsewhere it says
// something new now and then.
type progressLine struct {
	out  io.Writer
	live bool
	at   time.Time
	said string
}

func (l *progressLine) say(text string) {
	pause := patience
	if l.live {
		pause = 100 * time.Millisecond
	}
	if text == l.said || time.Since(l.at) < pause && !l.at.IsZero() {
		return
	}
	l.said, l.at = text, time.Now()
	if l.live {
		fmt.Fprintf(l.out, "\r\x1b[K%s", text)
		return
	}
	fmt.Fprintln(l.out, text)
}

func (l *progressLine) clear() {
	if l.live && l.said != "" {
		fmt.Fprint(l.out, "\r\x1b[K")
	}
}
