package sftpd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"
)

// Spec is what a child serves, and to whom. It comes from the server alone.
type Spec struct {
	Handle    string  `json:"handle"`
	UID       int     `json:"uid"` // and GID
	Subsystem string  `json:"subsystem"`
	Places    []Place `json:"places"`
}

const (
	specFD  = 3
	maxSpec = 1 << 20
)

// Child serves one session on standard input and output, and returns its exit code. Config.Command runs it, as root
// in the namespaces that the server made; it leaves everything behind that the person has no right to before it
// looks at the first byte.
func Child() int {
	if err := serveChild(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveChild() error {
	// gpulab was killed: what has arrived is written still, as when it closes standard input.
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() {
		<-ended
		time.Sleep(draining)
		os.Exit(0)
	}()
	signal.Ignore(syscall.SIGPIPE)
	spec, err := readSpec()
	if err != nil {
		return err
	}
	if err := enter(spec); err != nil {
		return fmt.Errorf("the places of the session: %w", err)
	}
	if err := drop(spec); err != nil {
		return fmt.Errorf("the rights of the session: %w", err)
	}
	files := newFiles(spec)
	if spec.Subsystem == subsystemSums {
		return serveSums(os.Stdin, os.Stdout, files)
	}
	server := sftp.NewRequestServer(stdio{},
		sftp.Handlers{FileGet: files, FilePut: files, FileCmd: files, FileList: files},
		sftp.WithStartDirectory(files.home))
	if err := server.Serve(); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return nil
}

func readSpec() (Spec, error) {
	var spec Spec
	f := os.NewFile(specFD, "spec")
	if f == nil {
		return spec, errors.New("gpulab itself runs this command")
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxSpec))
	if err != nil {
		return spec, errors.New("gpulab itself runs this command")
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return spec, fmt.Errorf("what the session is: %w", err)
	}
	if spec.UID < 1000 || spec.Handle == "" || len(spec.Places) == 0 || spec.Places[0].Name != "" {
		return spec, errors.New("what the session is: not a person's")
	}
	return spec, nil
}

// stdio is both ends of the session.
type stdio struct{}

func (stdio) Read(p []byte) (int, error)  { return os.Stdin.Read(p) }
func (stdio) Write(p []byte) (int, error) { return os.Stdout.Write(p) }
func (stdio) Close() error                { return errors.Join(os.Stdin.Close(), os.Stdout.Close()) }

// drop gives up every right but the person's own.
func drop(spec Spec) error {
	for _, limit := range []struct {
		which int
		to    uint64
	}{{unix.RLIMIT_NOFILE, 1024}, {unix.RLIMIT_CORE, 0}} {
		if err := unix.Setrlimit(limit.which, &unix.Rlimit{Cur: limit.to, Max: limit.to}); err != nil {
			return err
		}
	}
	all := func(what string, trap, a1, a2, a3, a4, a5 uintptr) error {
		if _, _, errno := syscall.AllThreadsSyscall6(trap, a1, a2, a3, a4, a5, 0); errno != 0 {
			return fmt.Errorf("%s: %w", what, errno)
		}
		return nil
	}
	for capability := uintptr(0); capability <= unix.CAP_LAST_CAP; capability++ {
		err := all("capabilities", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EINVAL) { // an older kernel has fewer
			return err
		}
	}
	groups := []int{}
	for _, p := range spec.Places {
		if p.GID > 0 {
			groups = append(groups, p.GID)
		}
	}
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setresgid(spec.UID, spec.UID, spec.UID),
		syscall.Setresuid(spec.UID, spec.UID, spec.UID)); err != nil {
		return err
	}
	syscall.Umask(0) // every file is made with the mode that it is to have
	return errors.Join(
		all("no new privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
		// A change of the user has undone both.
		unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0),
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0),
		rightless(),
	)
}

// rightless checks that nothing is left.
func rightless() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return err
	}
	for _, half := range have {
		if half.Effective|half.Permitted != 0 {
			return errors.New("capabilities are left")
		}
	}
	if unix.Getuid() == 0 || unix.Geteuid() == 0 || unix.Getegid() == 0 {
		return errors.New("root's rights are left")
	}
	return nil
}
