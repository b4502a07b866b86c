package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"
	"golang.org/x/term"

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
	flags.BoolVar(&opts.Check, "check", false, "compare SHA-256 checksums of both sides, also where size and time are the same")
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
	if !validLinks(opts.Links) || opts.AtOnce < 1 || opts.AtOnce > 64 {
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

func validLinks(l transfer.Links) bool {
	for _, known := range transfer.AllLinks() {
		if l == known {
			return true
		}
	}
	return false
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
		return nil, fail(ExitRefused, "this lab takes no files this way; use the upload button of JupyterLab, or ask an admin of the lab to turn it on (files.listen)")
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
		return nil, fail(ExitNotReached, "%s cannot be reached (%w); does a firewall keep the port for files closed?", address, err)
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
		return &transfer.Refusal{Cause: fail(ExitNotReached, "%s is not the lab that was asked over HTTPS: it shows another host key. Tell an admin of the lab", address)}
	case strings.Contains(err.Error(), "unable to authenticate") && said != "":
		return &transfer.Refusal{Cause: fail(ExitRefused, "%s", said)}
	case strings.Contains(err.Error(), "unable to authenticate"):
		return &transfer.Refusal{Cause: fail(ExitSignedOut, "the lab does not take your sign-in for files; run `gpulab login` again")}
	}
	return fail(ExitNotReached, "%s does not answer as it should: %w", address, err)
}

// meter shows how far a copy is, on a terminal only, and lines that stay anywhere.
type meter struct {
	show bool

	mu    sync.Mutex
	out   io.Writer
	drawn bool // a line of progress stands where the next text belongs
}

func newMeter(out io.Writer, quiet bool) *meter {
	file, is := out.(*os.File)
	return &meter{out: out, show: !quiet && is && term.IsTerminal(int(file.Fd()))}
}

// note shows a line that stays.
func (m *meter) note(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
	fmt.Fprintf(m.out, "gpulab: %s\n", plain(text))
}

func (m *meter) erase() {
	if m.drawn {
		fmt.Fprint(m.out, "\r\x1b[K")
	}
	m.drawn = false
}

func (m *meter) draw(line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
	fmt.Fprint(m.out, line)
	m.drawn = true
}

// watch shows progress until the function that it returns is called.
func (m *meter) watch(run *transfer.Run) (done func()) {
	if !m.show {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		var speed pace
		for {
			select {
			case now := <-tick.C:
				p := run.Progress()
				m.draw(progressWords(p, speed.of(p.Sent, now)))
			case <-stop:
				m.mu.Lock()
				defer m.mu.Unlock()
				m.erase()
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// pace is how fast bytes move, over the last seconds.
type pace struct{ samples []sample }

type sample struct {
	at   time.Time
	sent int64
}

// paceOver is how far back the pace looks.
const paceOver = 10 * time.Second

// of takes a reading and returns bytes per second; 0 while that is not known.
func (p *pace) of(sent int64, now time.Time) float64 {
	p.samples = append(p.samples, sample{now, sent})
	for len(p.samples) > 2 && now.Sub(p.samples[0].at) > paceOver {
		p.samples = p.samples[1:]
	}
	first := p.samples[0]
	if over := now.Sub(first.at).Seconds(); over > 0.5 {
		return float64(sent-first.sent) / over
	}
	return 0
}

// progressWords are one line of a terminal.
func progressWords(p transfer.Progress, perSecond float64) string {
	found := byteWords(p.Found)
	files := strconv.FormatInt(p.FilesFound, 10)
	if p.Looking {
		found, files = found+"+", files+"+"
	}
	line := fmt.Sprintf("%d of %s files, %s of %s", p.Files, files, byteWords(p.Done), found)
	switch {
	case p.Lost:
		return line + ", waiting for the connection"
	case perSecond >= 1:
		line += ", " + byteWords(int64(perSecond)) + "/s"
		if !p.Looking {
			left := time.Duration(float64(p.Found-p.Done) / perSecond * float64(time.Second))
			line += ", " + leftWords(left) + " left"
		}
	}
	return line
}

// leftWords says how long something takes still, roughly.
func leftWords(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return "a few seconds"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds())/10*10)
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// byteWords writes an amount in the units of the lab's pages.
func byteWords(n int64) string {
	value, unit := float64(n), 0
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"}
	for value >= 1023.5 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	switch {
	case unit == 0:
		return fmt.Sprintf("%d bytes", n)
	case value < 9.95:
		return fmt.Sprintf("%.1f %s", value, units[unit])
	}
	return fmt.Sprintf("%.0f %s", value, units[unit])
}

// summaryWords say what was done.
func summaryWords(s transfer.Summary) string {
	parts := []string{fmt.Sprintf("%s copied (%s)", filesWord(s.Copied), byteWords(s.Bytes))}
	if s.Seconds >= 1 && s.Bytes > 0 {
		parts[0] = fmt.Sprintf("%s copied (%s, %s/s)", filesWord(s.Copied), byteWords(s.Bytes), byteWords(int64(float64(s.Bytes)/s.Seconds)))
	}
	if s.Unchanged > 0 {
		parts = append(parts, fmt.Sprintf("%d there already", s.Unchanged))
	}
	if s.Kept > 0 {
		parts = append(parts, byteWords(s.Kept)+" from an earlier try")
	}
	if s.Links > 0 {
		parts = append(parts, fmt.Sprintf("%d symbolic links made", s.Links))
	}
	if len(s.Skipped) > 0 {
		parts = append(parts, fmt.Sprintf("%d left out", len(s.Skipped)))
	}
	return strings.Join(parts, ", ") + "."
}

func filesWord(n int64) string {
	if n == 1 {
		return "1 file"
	}
	return strconv.FormatInt(n, 10) + " files"
}
