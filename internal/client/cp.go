package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/gpulab/gpulab/internal/transfer"
	"github.com/gpulab/gpulab/internal/version"
)

// labPrefix is what paths in the lab begin with on the command line.
const labPrefix = "lab:"

// fileDoor is where a lab takes files, as it says itself over HTTPS.
type fileDoor struct {
	Enabled bool   `json:"enabled"`
	Port    int    `json:"port"`
	User    string `json:"user"`
	HostKey string `json:"hostKey"`
}

func newCp(a *App) *cobra.Command {
	var opts transfer.Options
	var links string
	var quiet, asJSON bool
	c := &cobra.Command{
		Use: "cp SOURCE... TARGET", Short: "Copy files and folders into the lab, or back",
		Long: `Copy files and folders between this computer and your home in the lab. Paths in
the lab begin with lab: and are relative to your home; shared folders are below
lab:shared/.

A target that ends with a slash, . and lab: itself are folders to copy into; any
other target is the copy's own name. So the same line may be run again: files
that are there with the same size and time are left as they are, and what was
interrupted goes on where it stopped. A connection that is lost is opened again.

Nothing is deleted. A file that is there and differs is replaced once its copy
is complete; until then the copy is called NAME.ID.partial. Symbolic links in a
folder are copied as links (--links); pipes, sockets and devices are left out,
and said.

This computer knows the lab by the key that the lab itself names over HTTPS.`,
		Example: `  gpulab cp -r ./data lab:data        your folder data, as data in your home
  gpulab cp -r lab:results .          back, as ./results
  gpulab cp model.pt lab:models/      one file into a folder
  gpulab cp -r --check data lab:data  and compare checksums`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			opts.Links = transfer.Links(links)
			return a.cp(c, args[:len(args)-1], args[len(args)-1], opts, quiet, asJSON)
		},
	}
	flags := c.Flags()
	flags.BoolVarP(&opts.Recursive, "recursive", "r", false, "copy folders with all that is in them")
	flags.BoolVar(&opts.Check, "check", false, "compare SHA-256 checksums of both sides, also where size and time are "+
		"the same")
	flags.StringVar(&links, "links", string(transfer.LinksCopy), "symbolic links in folders: copy, follow or skip")
	flags.IntVarP(&opts.AtOnce, "at-once", "j", 8, "how many files to copy at a time")
	flags.DurationVar(&opts.Patience, "patience", 10*time.Minute, "how long to try again when the connection is lost")
	flags.BoolVarP(&quiet, "quiet", "q", false, "no progress; errors are shown still")
	jsonFlag(c, &asJSON)
	return c
}

// cp runs one copy.
func (a *App) cp(c *cobra.Command, from []string, to string, opts transfer.Options, quiet, asJSON bool) error {
	up, from, to, err := direction(from, to)
	if err != nil {
		return usage(c, err)
	}
	if !slices.Contains(transfer.AllLinks(), opts.Links) || opts.AtOnce < 1 || opts.AtOnce > 64 {
		return usage(c, errors.New("--links is copy, follow or skip, and --at-once 1 to 64"))
	}
	session, err := a.Session()
	if err != nil {
		return err
	}
	ctx := c.Context()
	dial, err := session.fileDialer(ctx)
	if err != nil {
		return err
	}
	show := newMeter(c.ErrOrStderr(), quiet || asJSON)
	opts.Note = show.note
	run := transfer.New(dial, opts)
	done := show.watch(run)
	copying := run.Download
	if up {
		copying = run.Upload
	}
	summary, err := copying(ctx, from, to)
	done()
	if asJSON {
		if err := printJSON(c.OutOrStdout(), summary); err != nil {
			return err
		}
	} else if !quiet && (err == nil || summary.Copied > 0) {
		fmt.Fprintln(c.OutOrStdout(), summaryWords(summary))
	}
	return copyError(ctx, summary, err)
}

// copyError is what a run came to, as an error with its exit code.
func copyError(ctx context.Context, summary transfer.Summary, err error) error {
	var coded interface{ ExitCode() int }
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fail(ExitFailure, "interrupted; run the same line again, and it goes on where it stopped")
	case errors.As(err, &coded):
		return err
	case err != nil:
		return fail(ExitFailure, "%w", err)
	case len(summary.Failed) == 1:
		return fail(ExitFailure, "1 file was not copied; the line above says why")
	case len(summary.Failed) > 1:
		return fail(ExitFailure, "%d files were not copied; the lines above say why", len(summary.Failed))
	}
	return nil
}

// direction tells which side is the lab, and takes the prefix off its paths.
func direction(from []string, to string) (up bool, sources []string, target string, err error) {
	inLab := 0
	for _, source := range from {
		if strings.HasPrefix(source, labPrefix) {
			inLab++
			source = labPath(source)
		}
		if source == "" && inLab == 0 {
			return false, nil, "", errors.New("a source is empty")
		}
		sources = append(sources, source)
	}
	up = strings.HasPrefix(to, labPrefix)
	switch {
	case to == "":
		err = errors.New("the target is empty; write . for this folder, or lab: for your home in the lab")
	case up && inLab > 0:
		err = errors.New("both sides are in the lab; copy there in JupyterLab")
	case !up && inLab == 0:
		err = errors.New("neither side is in the lab; begin its paths with lab:, such as lab:data")
	case !up && inLab < len(from):
		err = errors.New("some sources are in the lab and some are here; copy them one after the other")
	}
	if up {
		return up, sources, labPath(to), err
	}
	return up, sources, to, err
}

// labPath is a path in the lab: without the prefix, and with ~ for the home.
func labPath(arg string) string {
	path := strings.TrimPrefix(arg, labPrefix)
	if path == "~" {
		return ""
	}
	return strings.TrimPrefix(path, "~/")
}

// fileDialer asks the lab where it takes files, and how to know the place.
func (s *Session) fileDialer(ctx context.Context) (transfer.Dial, error) {
	var door fileDoor
	if err := s.Get(ctx, "/files", &door); err != nil {
		return nil, err
	}
	if !door.Enabled {
		return nil, fail(ExitRefused, "this lab takes no files this way; use the upload button of JupyterLab, or ask an "+
			"admin of the lab to turn it on (files.listen)")
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(door.HostKey))
	if err != nil {
		return nil, fail(ExitFailure, "the lab does not say how to know it (%w); is this gpulab of another version?", err)
	}
	address := net.JoinHostPort(s.Host(), strconv.Itoa(door.Port))
	config := &ssh.ClientConfig{
		User: door.User, Auth: []ssh.AuthMethod{ssh.Password(s.Login.Token)},
		HostKeyCallback: ssh.FixedHostKey(key), HostKeyAlgorithms: []string{key.Type()},
		ClientVersion: "SSH-2.0-gpulab-" + versionWord(), Timeout: 15 * time.Second,
	}
	return func(ctx context.Context) (*ssh.Client, error) { return dialFiles(ctx, address, config) }, nil
}

// versionWord is the version as SSH takes it.
func versionWord() string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == '-' {
			return '.'
		}
		return r
	}, version.Version+"."+runtime.GOOS)
}

// dialFiles connects, and explains why that does not work.
func dialFiles(ctx context.Context, address string, config *ssh.ClientConfig) (*ssh.Client, error) {
	dialer := net.Dialer{Timeout: config.Timeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fail(ExitNotReached, "%s cannot be reached (%w); does a firewall keep the port for files closed?",
			address, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(config.Timeout + 15*time.Second))
	said := ""
	mine := *config
	mine.BannerCallback = func(text string) error {
		said = strings.TrimSpace(clip(plain(text), 500))
		return nil
	}
	c, channels, requests, err := ssh.NewClientConn(conn, address, &mine)
	if err != nil {
		_ = conn.Close()
		return nil, refusedFiles(address, said, err)
	}
	_ = conn.SetDeadline(time.Time{})
	return ssh.NewClient(c, channels, requests), nil
}

// refusedFiles tells what trying again would not change.
func refusedFiles(address, said string, err error) error {
	switch {
	case strings.Contains(err.Error(), "host key"):
		return &transfer.Refusal{Cause: fail(ExitNotReached, "%s is not the lab that was asked over HTTPS: it shows "+
			"another host key. Tell an admin of the lab", address)}
	case strings.Contains(err.Error(), "unable to authenticate") && said != "":
		return &transfer.Refusal{Cause: fail(ExitRefused, "%s", said)}
	case strings.Contains(err.Error(), "unable to authenticate"):
		return &transfer.Refusal{Cause: fail(ExitSignedOut, "the lab does not take your sign-in for files; run `gpulab "+
			"login` again")}
	}
	return fail(ExitNotReached, "%s does not answer as it should: %w", address, err)
}
