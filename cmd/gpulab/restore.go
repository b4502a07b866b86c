package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/backup"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
)

// restoreFlags say what becomes of what is there.
type restoreFlags struct{ replace, keepHomes, dryRun, asJSON bool }

func newRestore(a *app) *cobra.Command {
	var f restoreFlags
	c := &cobra.Command{
		Use: "restore FILE", Short: "Bring a lab back from a backup",
		Long: `Bring a lab back from what gpulab backup has saved, on this or another machine, with
the same version of gpulab; one whose database is older is brought to this version.
"-" reads standard input. gpulab init starts the lab then. Passwords, homes and
user numbers are those of the backup, and browsers go on trusting the lab. Everybody
is signed out, and notebooks that ran or waited have ended.

Everything is unpacked and checked beside what is there before anything changes. Where
the machine has a lab with people, --replace ends that and sets it aside in the data
folder (before-restore-…), where it stays until somebody deletes it.

Homes of a backup take the place of those that are there. A backup without homes leaves
the homes of the same lab where they are; where it is not known whose they are, say
--keep-homes (they are of this lab) or --replace (set them aside).

Ended at any moment, even by a power cut, it leaves the old lab or the restored one;
run again, or by gpulab init, it goes on.`,
		Example: `  sudo gpulab restore --dry-run lab.tar.zst
  sudo gpulab restore lab.tar.zst && sudo gpulab init
  sudo gpulab restore --replace - < lab.tar.zst`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			return interruptedOr(c, restore(c, a, args[0], f), "interrupted; what was there before is as it was. If a lab "+
				"ran here and has ended, `gpulab init` starts it again")
		},
	}
	c.Flags().BoolVar(&f.replace, "replace", false, "set the lab that is here aside")
	c.Flags().BoolVar(&f.keepHomes, "keep-homes", false, "homes and shared folders that are here belong to the lab of "+
		"the backup")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "read it to the end and say what would be done")
	jsonFlag(c, &f.asJSON)
	return c
}

// restoreJournal is where a restore that is under way says so.
func restoreJournal(a *app) string { return a.configPath + ".restore" }

// finishRestore does what is left of a restore that was interrupted.
func finishRestore(ctx context.Context, a *app, out io.Writer) error {
	_, was, err := backup.Finish(ctx, restoreJournal(a))
	if err != nil {
		return fmt.Errorf("a restore was interrupted and could not be finished: %w", err)
	}
	if was {
		fmt.Fprintln(out, "· a restore that was interrupted is finished")
	}
	return nil
}

// restoreReport is what --json prints.
type restoreReport struct {
	DryRun   bool            `json:"dryRun"`
	Manifest backup.Manifest `json:"manifest"`
	Totals   backup.Totals   `json:"totals"`
	Placed   *backup.Placed  `json:"placed,omitempty"`
	// Notes are what is not as it was when the backup was made.
	Notes []string `json:"notes,omitempty"`
}

// restoring is one restore.
type restoring struct {
	a     *app
	f     restoreFlags
	cfg   config.Config // of this machine
	here  labHere
	notes []string
	step  func(string)
}

// labHere is what the machine has before.
type labHere struct {
	there  bool
	people int    // -1 where that cannot be found out
	ca     string // the fingerprint of its authority, "" for none
	homes  bool   // there are homes or shared folders
}

func restore(c *cobra.Command, a *app, name string, f restoreFlags) error {
	ctx := c.Context()
	if f.dryRun {
		if _, err := os.Lstat(restoreJournal(a)); err == nil {
			return fail(exitFailure, "a restore was interrupted; finish it with `gpulab init` first")
		}
	} else if unfinished, err := finishEarlier(ctx, c, a); unfinished || err != nil {
		return err
	}
	cfg, err := loadConfig(a.configPath)
	if err != nil {
		return err
	}
	file, size, err := openArchive(c, name, "a backup is one file")
	if err != nil {
		return err
	}
	defer file.Close()
	r := &restoring{a: a, f: f, cfg: cfg, here: lookHere(ctx, cfg), step: func(s string) {
		if !f.asJSON {
			fmt.Fprintf(c.OutOrStdout(), "· %s\n", s)
		}
	}}
	line := progressLine{out: c.ErrOrStderr(), live: isTerminal(c.ErrOrStderr())}
	from := &countingReader{r: file, at: func(n int64) {
		if line.live {
			line.say("reading " + progress(n, size))
		}
	}}
	report := restoreReport{DryRun: f.dryRun}
	if f.dryRun {
		report.Manifest, report.Totals, err = backup.Verify(ctx, from)
		line.clear()
		if err == nil {
			err = r.check(report.Manifest)
		}
	} else {
		report, err = r.run(ctx, from, line.clear)
	}
	if err != nil {
		return err
	}
	report.Notes = r.notes
	if f.asJSON {
		return printJSON(c.OutOrStdout(), report)
	}
	r.say(c.OutOrStdout(), report)
	return nil
}

// finishEarlier goes on with a restore that was interrupted, instead of
// beginning another over it.
func finishEarlier(ctx context.Context, c *cobra.Command, a *app) (was bool, err error) {
	_, was, err = backup.Finish(ctx, restoreJournal(a))
	if was && err == nil {
		fmt.Fprintln(c.OutOrStdout(), "✓ The restore that was interrupted is finished. Next: `gpulab init`.")
	}
	return was, err
}

// lookHere finds out what a restore would meet.
func lookHere(ctx context.Context, cfg config.Config) labHere {
	var h labHere
	db, _, err := store.OpenExisting(ctx, filepath.Join(cfg.DataDir, store.MainFile))
	if !errors.Is(err, fs.ErrNotExist) {
		h.there, h.people = true, -1
	}
	if err == nil {
		defer db.Close()
		if list, err := users.New(db).List(ctx); err == nil {
			h.people = len(list)
		}
	}
	if fp, err := caFingerprint(cfg); err == nil {
		h.ca = fp
	}
	for _, part := range workParts {
		entries, _ := os.ReadDir(filepath.Join(cfg.DataDir, part))
		h.homes = h.homes || slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
			return strings.Trim(e.Name(), "0123456789") == ""
		})
	}
	return h
}

// same tells whether the lab here is the one of a backup.
func (h labHere) same(m backup.Manifest) bool { return h.ca != "" && h.ca == m.CA }

// check refuses what does not fit this machine, and notes what will differ.
func (r *restoring) check(m backup.Manifest) error {
	main, metrics := store.Known()
	made := visibly(m.Version)
	if m.Schema > main || m.HistorySchema > metrics {
		return fail(exitFailure, "the backup was made by gpulab %s, whose database is newer (schema %d, this gpulab %s "+
			"knows schema %d); install gpulab %s, then restore", made, m.Schema, version.Version, main, made)
	}
	if m.Version != version.Version {
		r.notes = append(r.notes, fmt.Sprintf("The backup was made by gpulab %s; this one, %s, takes its database over "+
			"(schema %d, now %d).", made, version.Version, m.Schema, main))
	}
	switch {
	case r.here.there && r.here.people != 0 && !r.f.replace:
		who := fmt.Sprintf("%d people", r.here.people)
		if r.here.people == 1 {
			who = "1 person"
		} else if r.here.people < 0 {
			who = "a database that cannot be read"
		}
		return fail(exitFailure, "this machine has a lab with %s; say --replace to end it and set it aside", who)
	case r.f.keepHomes && m.Homes:
		return fail(exitUsage, "--keep-homes is for a backup without homes, and this one has them; leave it out, and "+
			"homes that are here are set aside")
	case !m.Homes && r.here.homes && !r.here.same(m) && !r.f.keepHomes && !r.f.replace:
		return fail(exitFailure, "homes or shared folders are in %s, and the backup has none: say --keep-homes if they "+
			"belong to its lab, or --replace to set them aside", r.cfg.DataDir)
	}
	return nil
}

// run unpacks, prepares and places.
func (r *restoring) run(ctx context.Context, from io.Reader, clearLine func()) (restoreReport, error) {
	var report restoreReport
	unlock, err := lockInit(r.a)
	if err != nil {
		return report, err
	}
	defer unlock()
	stage, err := backup.NewStage(ctx, r.cfg.DataDir)
	if err != nil {
		return report, err
	}
	done := false
	defer func() {
		if !done {
			_ = stage.Discard(context.WithoutCancel(ctx))
		}
	}()
	report.Manifest, report.Totals, err = stage.Unpack(ctx, from, r.check, func(string, int64) {})
	clearLine()
	if err != nil {
		return report, err
	}
	r.step("the backup is whole and unpacked")
	placing, err := r.prepare(ctx, stage, report.Manifest)
	if err != nil {
		return report, err
	}
	if _, err := os.Lstat(filepath.Join(r.cfg.DataDir, "k3s")); err == nil || r.here.there {
		if err := endLab(ctx, r.a, r.cfg, true, r.step); err != nil {
			return report, err
		}
		// Somebody may have come meanwhile.
		if err := r.carryNumbers(ctx, stage.Path("data/"+store.MainFile)); err != nil {
			return report, err
		}
	}
	release, err := lockDaemon(r.a.socket + ".pid")
	if err != nil {
		return report, err
	}
	defer release()
	r.step("putting the restored lab in place")
	placed, err := stage.Place(ctx, placing)
	done = err == nil || journalThere(placing.Journal)
	report.Placed = &placed
	return report, err
}

func journalThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// prepare makes what was unpacked fit this machine and this day.
func (r *restoring) prepare(ctx context.Context, stage *backup.Stage, m backup.Manifest) (backup.Placing, error) {
	p := backup.Placing{Journal: restoreJournal(r.a), Config: r.a.configPath, Now: time.Now()}
	if err := r.prepareConfig(stage.Path("etc/config.yaml")); err != nil {
		return p, err
	}
	path := stage.Path("data/" + store.MainFile)
	if err := store.Check(ctx, path); err != nil {
		return p, err
	}
	s, err := store.Open(ctx, filepath.Dir(path))
	if err != nil {
		return p, err
	}
	err = errors.Join(r.prepareLab(ctx, s.DB(), stage, m, &p), s.Close())
	if err != nil {
		return p, err
	}
	return p, r.carryNumbers(ctx, path)
}

// carryNumbers sees to it that the restored lab gives nobody a number that the lab here
// has given. Where its database cannot be read, the disk says which.
func (r *restoring) carryNumbers(ctx context.Context, path string) error {
	err := store.CarryNumbers(ctx, r.cfg.DataDir, path)
	if err == nil || r.here.people >= 0 {
		return err
	}
	if err := store.RaiseNumbers(ctx, path, givenOnDisk(r.cfg.DataDir)); err != nil {
		return fmt.Errorf("note which numbers have been given: %w", err)
	}
	return nil
}

// spareNumbers sees to it that a new lab gives nobody the home of somebody of a former one, nor its shared folders:
// their numbers are taken.
func (l *appliance) spareNumbers(ctx context.Context) error {
	var begun bool
	if err := l.store.DB().QueryRowContext(ctx,
		"SELECT EXISTS (SELECT 1 FROM users) OR EXISTS (SELECT 1 FROM folders)").Scan(&begun); err != nil || begun {
		return err
	}
	given := givenOnDisk(l.cfg.DataDir)
	if given == (store.Given{}) {
		return nil
	}
	if err := store.RaiseNumbers(ctx, filepath.Join(l.cfg.DataDir, store.MainFile), given); err != nil {
		return fmt.Errorf("note which numbers homes have that are here already: %w", err)
	}
	return nil
}

// givenOnDisk finds the highest numbers among homes and shared folders.
func givenOnDisk(dataDir string) (given store.Given) {
	highest := func(part string, id, owner *int64, of func(*syscall.Stat_t) uint32) {
		entries, _ := os.ReadDir(filepath.Join(dataDir, part))
		for _, e := range entries {
			n, err := strconv.ParseInt(e.Name(), 10, 64)
			info, ierr := e.Info()
			if err != nil || ierr != nil {
				continue
			}
			*id = max(*id, n)
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				*owner = max(*owner, int64(of(st)))
			}
		}
	}
	highest("homes", &given.Users, &given.UIDs, func(st *syscall.Stat_t) uint32 { return st.Uid })
	highest("folders", &given.Folders, &given.GIDs, func(st *syscall.Stat_t) uint32 { return st.Gid })
	return given
}

// prepareConfig fits the configuration to this machine.
func (r *restoring) prepareConfig(path string) error {
	cfg, err := loadConfig(path)
	if err != nil {
		return fmt.Errorf("the configuration in the backup: %w", err)
	}
	was := cfg
	cfg.DataDir = r.cfg.DataDir
	if was.DataDir != cfg.DataDir {
		r.notes = append(r.notes, fmt.Sprintf("The lab's data lay in %s; it is in %s here.", was.DataDir, cfg.DataDir))
	}
	if cfg.Address != "" && !isHere(cfg.Address) {
		r.notes = append(r.notes, fmt.Sprintf("The lab's address was %s, which this machine does not have; it is found by "+
			"itself now (address in %s).", cfg.Address, r.a.configPath))
		cfg.Address = ""
	}
	if host, port, err := net.SplitHostPort(string(cfg.Files.Listen)); err == nil && host != "" && !isHere(host) {
		r.notes = append(r.notes, fmt.Sprintf("Files came in at %s only, which this machine does not have; they do at "+
			"every address now (files.listen).", host))
		cfg.Files.Listen = config.FilesAddress(":" + port)
	}
	if cfg.DataDir == was.DataDir && cfg.Address == was.Address && cfg.Files.Listen == was.Files.Listen {
		return nil
	}
	_, err = config.Save(path, cfg)
	return err
}

// isHere tells whether this machine has an address.
func isHere(address string) bool {
	want, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return want.IsUnspecified() || slices.ContainsFunc(addrs, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr() == want.Unmap()
	})
}

// prepareLab brings the database of the backup to this day, and decides which
// homes and shared folders stay.
func (r *restoring) prepareLab(ctx context.Context, db *sql.DB, stage *backup.Stage, m backup.Manifest,
	p *backup.Placing) error {
	accounts := users.New(db)
	entry := audit.Entry{
		Actor: "root", Action: "backup.restore",
		Detail: "of " + m.Made.UTC().Format("2006-01-02 15:04") + " UTC, " + backupParts(m),
	}
	if err := errors.Join(accounts.Restored(ctx, entry), notebooks.EndRestored(ctx, db, time.Now()),
		mail.Restored(ctx, db, time.Now())); err != nil {
		return err
	}
	setting, err := backup.Last{Made: m.Made, Homes: m.Homes, History: m.History}.Setting()
	if err == nil {
		err = store.SetSetting(ctx, db, backup.LastSetting, setting)
	}
	if err != nil {
		return err
	}
	owners, err := ownersOf(ctx, accounts)
	if err != nil {
		return err
	}
	shared := storage.New(storage.Config{DB: db, People: accounts, FoldersDir: stage.Path("folders")})
	list, err := shared.Folders(ctx)
	if err != nil {
		return err
	}
	groups := map[int64]int{}
	p.Homes, p.Folders = map[int64]bool{}, map[int64]bool{}
	for id := range owners {
		p.Homes[id] = true
	}
	for i := range list {
		if list[i].Kind != storage.Host {
			groups[list[i].ID], p.Folders[list[i].ID] = list[i].GID, true
		}
	}
	if r.f.keepHomes || r.here.same(m) {
		p.Keep = keeper(owners, groups)
	}
	return shared.Restored(ctx, func(id int64) bool {
		name := fmt.Sprint(id)
		if _, err := os.Lstat(filepath.Join(stage.Path("folders"), name)); err == nil {
			return true
		}
		info, err := os.Lstat(filepath.Join(r.cfg.DataDir, "folders", name))
		return err == nil && p.Keep != nil && p.Keep("folders", id, info)
	})
}

// ownersOf are the numbers on the disk of everybody who has a home.
func ownersOf(ctx context.Context, accounts *users.Service) (map[int64]int, error) {
	owners := map[int64]int{}
	list, err := accounts.List(ctx)
	if err != nil {
		return nil, err
	}
	for i := range list {
		owners[list[i].ID] = list[i].UID
	}
	removed, err := accounts.Removed(ctx)
	for i := range removed {
		owners[removed[i].ID] = removed[i].UID
	}
	return owners, err
}

// keeper lets those homes and shared folders stay that belong to who the
// restored lab says.
func keeper(owners, groups map[int64]int) func(string, int64, fs.FileInfo) bool {
	return func(part string, id int64, info fs.FileInfo) bool {
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || !info.IsDir() {
			return false
		}
		if part == "homes" {
			return int(st.Uid) == owners[id]
		}
		return int(st.Gid) == groups[id] || int(st.Gid) == groups[id]+1 // that of a hand-in
	}
}

// say tells what was done, and what is next.
func (r *restoring) say(w io.Writer, report restoreReport) {
	m := report.Manifest
	if r.f.dryRun {
		describeBackup(w, m, report.Totals)
		if r.here.there {
			fmt.Fprintln(w, "  The lab that is here would end, and be set aside.")
		}
	} else {
		fmt.Fprintf(w, "✓ %s is restored as it was at %s: %d people; %s.\n", visibly(m.Lab),
			m.Made.Local().Format("2006-01-02 15:04"), m.People, backupParts(m))
		if report.Placed.Kept > 0 {
			fmt.Fprintf(w, "  %d homes and shared folders stayed as they were.\n", report.Placed.Kept)
		}
	}
	for _, n := range r.notes {
		fmt.Fprintln(w, "  "+n)
	}
	if r.f.dryRun {
		return
	}
	if report.Placed != nil && len(report.Placed.Aside) > 0 {
		fmt.Fprintf(w, "  What was here before is in %s; delete it when it is needed no more.\n",
			strings.Join(report.Placed.Aside, " and "))
	}
	fmt.Fprintln(w, "  Everybody is signed out. What was changed since the backup, such as passwords or access\n  "+
		"tokens that were taken back, is as it was then.\n  Next: `gpulab init` starts the lab.")
}
