package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/backup"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
)

// backupFlags say what is saved, and how.
type backupFlags struct{ homes, history, force, verify, asJSON bool }

func newBackup(a *app) *cobra.Command {
	var f backupFlags
	c := &cobra.Command{
		Use: "backup FILE", Short: "Save the lab into a file, while it runs",
		Long: `Save the lab into a file, while it runs: accounts, groups, quotas, the audit log and
all else in its database, the authority that browsers trust, the SSH host key, the
token of the metrics, and the configuration with the files beside it that it names.
With --homes also everybody's home and the shared folders, with --history what the
GPUs did. "-" writes to standard output. gpulab restore brings it back.

The file holds secrets, private keys among them: only root may read it, and it should
be encrypted before it leaves the machine, as in the third example.

Not in it: environments, container images from "gpulab images", folders of the machine
that the lab only shows, and what is in the memory of running notebooks.`,
		Example: `  sudo gpulab backup /mnt/nas/lab.tar.zst
  sudo gpulab backup --homes --force /mnt/nas/lab.tar.zst
  sudo gpulab backup --homes - | age -r age1… > lab.tar.zst.age
  sudo gpulab backup --verify /mnt/nas/lab.tar.zst`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(c *cobra.Command, args []string) error {
			if f.verify {
				return verifyBackup(c, args[0], f.asJSON)
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			err := makeBackup(c, a, args[0], f)
			switch {
			case err != nil && c.Context().Err() != nil:
				return fail(exitFailure, "interrupted; no backup was made, and one that was there before is as it was")
			case errors.Is(err, syscall.ENOSPC):
				return fail(exitFailure, "there is no room for the backup (%w); nothing of it is left. Make room, or name a "+
					"file elsewhere", err)
			}
			return err
		},
	}
	c.Flags().BoolVar(&f.homes, "homes", false, "save homes and shared folders too")
	c.Flags().BoolVar(&f.history, "history", false, "save what the GPUs did too (metrics.db)")
	c.Flags().BoolVar(&f.force, "force", false, "replace a file that is there, once the new one is complete")
	c.Flags().BoolVar(&f.verify, "verify", false, "read a backup to its end and say what is in it")
	for _, other := range []string{"homes", "history", "force"} {
		c.MarkFlagsMutuallyExclusive("verify", other)
	}
	jsonFlag(c, &f.asJSON)
	return c
}

// maxNotes is how many things that were not saved are listed one by one.
const maxNotes = 20

// notes lists what was not saved as it is on the disk.
type notes struct {
	list []leftOut
	all  int
}

// leftOut is one of them.
type leftOut struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

func (n *notes) add(path, why string) {
	if n.all++; len(n.list) < maxNotes {
		n.list = append(n.list, leftOut{path, why})
	}
}

func (n *notes) print(w io.Writer) {
	for _, l := range n.list {
		fmt.Fprintf(w, "  ! %s: %s\n", visibly(l.Path), visibly(l.Why))
	}
	if more := n.all - len(n.list); more > 0 {
		fmt.Fprintf(w, "  ! and %d more\n", more)
	}
}

// backupReport is what --json prints.
type backupReport struct {
	File     string          `json:"file"`
	Size     int64           `json:"size"` // of the file, in bytes
	Manifest backup.Manifest `json:"manifest"`
	Totals   backup.Totals   `json:"totals"`
	// LeftOut are the first of what was not saved as it is on the disk.
	LeftOut []leftOut `json:"leftOut,omitempty"`
}

func makeBackup(c *cobra.Command, a *app, name string, f backupFlags) error {
	ctx := c.Context()
	if _, err := os.Lstat(restoreJournal(a)); err == nil {
		return fail(exitFailure, "a restore was interrupted; finish it with `gpulab init`, then make the backup")
	}
	cfg, err := loadConfig(a.configPath)
	if err != nil {
		return err
	}
	db, err := openLab(ctx, cfg)
	if err != nil {
		return err
	}
	defer db.Close()
	var left notes
	src, err := backupSource(ctx, a, cfg, db, f, &left)
	if err != nil {
		return err
	}
	out, say := c.OutOrStdout(), c.OutOrStdout()
	var target *backup.Target
	if name == "-" {
		say = c.ErrOrStderr()
		if isTerminal(out) {
			return fail(exitUsage, "a backup is no text for a terminal; name a file, or lead it into another program")
		}
	} else {
		if target, err = newBackupFile(cfg, name, f.force); err != nil {
			return err
		}
		defer target.Close()
		out = target
		warnRoom(ctx, c.ErrOrStderr(), cfg, db, filepath.Dir(name), f)
	}
	line := progressLine{out: c.ErrOrStderr(), live: isTerminal(c.ErrOrStderr())}
	file := &countingWriter{w: out}
	manifest, totals, err := backup.Create(ctx, src, file,
		backup.Watch{Note: left.add, Step: func(path string, bytes int64) {
			if line.live {
				line.say(fmt.Sprintf("%s saved; %s", amount(bytes), visibly(clip(path, 50))))
			}
		}})
	line.clear()
	if err == nil && target != nil {
		err = target.Commit(f.force)
	}
	if err != nil {
		return err
	}
	left.print(c.ErrOrStderr())
	if err := noteBackup(ctx, db, name, manifest, file.n); err != nil {
		fmt.Fprintf(c.ErrOrStderr(), "  ! the lab does not know of this backup: %s\n", err)
	}
	if f.asJSON {
		return printJSON(say, backupReport{name, file.n, manifest, totals, left.list})
	}
	where := name
	if name == "-" {
		where = "standard output"
	}
	fmt.Fprintf(say, "✓ %s is saved in %s: %s, %d entries.\n", manifest.Lab, where, amount(file.n), totals.Entries)
	fmt.Fprintf(say, "  %s\n  It holds secrets: keep it where nobody else can read it, or encrypt it.\n",
		backupParts(manifest))
	return nil
}

// openLab opens the database of the lab on this machine as it is.
func openLab(ctx context.Context, cfg config.Config) (*sql.DB, error) {
	path := filepath.Join(cfg.DataDir, store.MainFile)
	db, schema, err := store.OpenExisting(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fail(exitNotRunning, "there is no lab in %s; make one with `gpulab init`", cfg.DataDir)
	}
	if err != nil {
		return nil, err
	}
	if known, _ := store.Known(); schema != known {
		err = fmt.Errorf("%s has schema %d, and this gpulab knows schema %d: run `gpulab init`, which brings the lab to "+
			"this version, then make the backup", path, schema, known)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// backupSource says what of the lab is saved.
func backupSource(ctx context.Context, a *app, cfg config.Config, db *sql.DB, f backupFlags,
	left *notes) (backup.Source, error) {
	src := backup.Source{DataDir: cfg.DataDir, Config: a.configPath, History: f.history}
	if _, err := os.Stat(a.configPath); err != nil {
		return src, fmt.Errorf("the configuration: %w", err)
	}
	for _, path := range cfg.FilesNamed() {
		if filepath.Dir(path) == filepath.Dir(a.configPath) {
			src.Beside = append(src.Beside, filepath.Base(path))
		} else {
			left.add(path, "the configuration names it, but it does not lie beside that")
		}
	}
	homes, folders, people, err := numbersOf(ctx, db)
	if err != nil {
		return src, err
	}
	if f.homes {
		src.Homes, src.Folders = homes, folders
	}
	host, err := os.Hostname()
	if err != nil {
		return src, err
	}
	src.Manifest = backup.Manifest{
		Version: version.Version, Lab: cfg.Lab, Host: host, Made: time.Now().UTC().Truncate(time.Second), People: people,
	}
	if fp, err := caFingerprint(cfg); err == nil {
		src.Manifest.CA = fp
	}
	return src, nil
}

// numbersOf are the numbers of all homes and shared folders that a lab keeps, those of removed people who may come
// back included; people counts those who are not removed.
func numbersOf(ctx context.Context, db *sql.DB) (homes, folders []int64, people int, err error) {
	accounts := users.New(db)
	list, err := accounts.List(ctx)
	if err != nil {
		return nil, nil, 0, err
	}
	removed, err := accounts.Removed(ctx)
	if err != nil {
		return nil, nil, 0, err
	}
	homes, folders = []int64{}, []int64{}
	for i := range list {
		homes = append(homes, list[i].ID)
	}
	for i := range removed {
		homes = append(homes, removed[i].ID)
	}
	shared, err := storage.New(storage.Config{DB: db, People: accounts}).Folders(ctx)
	for i := range shared {
		if shared[i].Kind != storage.Host {
			folders = append(folders, shared[i].ID)
		}
	}
	return homes, folders, len(list), err
}

// newBackupFile begins the file of a backup, which is no part of what is saved.
func newBackupFile(cfg config.Config, name string, force bool) (*backup.Target, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(name))
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("the folder for the backup: %w", err)
	}
	data, err := filepath.EvalSymlinks(cfg.DataDir)
	if err == nil && strings.HasPrefix(dir+"/", data+"/") {
		return nil, fail(exitUsage, "%s lies in gpulab's own data folder, which would go with it; name a file elsewhere, "+
			"best on another machine's disk", name)
	}
	return backup.NewTarget(name, force)
}

// warnRoom says beforehand where the file may not fit. It is no reason to refuse: what is saved is compressed.
func warnRoom(ctx context.Context, w io.Writer, cfg config.Config, db *sql.DB, dir string, f backupFlags) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return
	}
	var need uint64
	add := func(path string) {
		if info, err := os.Stat(path); err == nil {
			need += uint64(info.Size())
		}
	}
	add(filepath.Join(cfg.DataDir, store.MainFile))
	if f.history {
		add(filepath.Join(cfg.DataDir, store.MetricsFile))
	}
	if f.homes {
		if sizes, err := storage.New(storage.Config{DB: db}).Measured(ctx); err == nil {
			need += uint64(sizes)
		}
	}
	if free := st.Bavail * uint64(st.Bsize); need > free {
		fmt.Fprintf(w, "  ! %s has %s free, and %s are saved, compressed: it may not fit\n", dir, units.Bytes(free),
			units.Bytes(need))
	}
}

// noteBackup lets the lab know of a backup that was made.
func noteBackup(ctx context.Context, db *sql.DB, name string, m backup.Manifest, size int64) error {
	setting, err := backup.Last{Made: m.Made, Bytes: size, Homes: m.Homes, History: m.History}.Setting()
	if err == nil {
		err = store.SetSetting(ctx, db, backup.LastSetting, setting)
	}
	if err != nil {
		return err
	}
	return audit.New(db, time.Now).Record(ctx, audit.Entry{
		Actor: "root", Action: "backup.create", Target: filepath.Base(name), Detail: amount(size) + ", " + backupParts(m),
	})
}

// backupParts says in words what a backup holds.
func backupParts(m backup.Manifest) string {
	with, without := []string{"database", "authority", "configuration"}, []string{}
	for _, part := range []struct {
		there bool
		words string
	}{{m.Homes, "homes and shared folders"}, {m.History, "history of the GPUs"}} {
		if part.there {
			with = append(with, part.words)
		} else {
			without = append(without, part.words)
		}
	}
	text := "with " + strings.Join(with, ", ")
	if len(without) > 0 {
		text += "; without " + strings.Join(without, ", ")
	}
	return text
}

func verifyBackup(c *cobra.Command, name string, asJSON bool) error {
	file, size, err := openArchive(c, name, "a backup is one file")
	if err != nil {
		return err
	}
	defer file.Close()
	line := progressLine{out: c.ErrOrStderr(), live: isTerminal(c.ErrOrStderr())}
	from := &countingReader{r: file, at: func(n int64) {
		if line.live {
			line.say("reading " + progress(n, size))
		}
	}}
	m, totals, err := backup.Verify(c.Context(), from)
	line.clear()
	if err != nil {
		return interruptedOr(c, err, "interrupted; the backup was not read to its end")
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), backupReport{File: name, Size: size, Manifest: m, Totals: totals})
	}
	describeBackup(c.OutOrStdout(), m, totals)
	return nil
}

// interruptedOr is err, or that it was interrupted.
func interruptedOr(c *cobra.Command, err error, interrupted string) error {
	if err != nil && c.Context().Err() != nil {
		return fail(exitFailure, "%s", interrupted)
	}
	return err
}

func describeBackup(w io.Writer, m backup.Manifest, t backup.Totals) {
	fmt.Fprintf(w, "✓ A whole backup of %s on %s, made %s by gpulab %s.\n", visibly(m.Lab), visibly(m.Host),
		m.Made.Local().Format("2006-01-02 15:04"), visibly(m.Version))
	fmt.Fprintf(w, "  %d people; %s\n  %d entries, %s\n", m.People, backupParts(m), t.Entries, amount(t.Bytes))
	if t.LeftOut > 0 {
		fmt.Fprintf(w, "  %d things were left out or changed while they were saved\n", t.LeftOut)
	}
	if m.CA != "" {
		fmt.Fprintf(w, "  Certificate  SHA-256 %s\n", visibly(m.CA))
	}
}

// amount writes bytes also where they are few.
func amount(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d kB", (n+999)/1000)
	}
	return units.Bytes(uint64(n))
}

// clip cuts a text that is too long, at its beginning.
func clip(text string, length int) string {
	if len(text) <= length {
		return text
	}
	return "…" + text[len(text)-length:]
}

// countingWriter counts what is written.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
