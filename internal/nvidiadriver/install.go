package nvidiadriver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Installer runs plans.
type Installer struct {
	// Root is where the machine's files are; the commands themselves run in "/".
	Root string
	// Log takes all that the commands print; it is read, too, when something goes wrong. It is a file rather than a pipe,
	// because a service that a package starts may hold on to it.
	Log *os.File
	// Terminal is where steps ask that have to; nil leaves such steps to somebody else.
	Terminal *os.File
	// Env is added to the environment of the commands, such as a proxy.
	Env []string
	// Step is told each step before it runs; Progress how far apt is, in percent, and with what.
	Step     func(Step)
	Progress func(percent float64, what string)
}

// Install does what the machine's situation asks for, step by step, until the driver works or nothing is left that a
// program can do; it returns the situation then. It may be interrupted and run again.
func (i Installer) Install(ctx context.Context) (Situation, error) {
	done := map[Kind]bool{}
	lists := "" // what fetching the lists of packages said
	for {
		s := Look(i.Root)
		p := s.Plan()
		if !p.Runnable() || done[s.Kind] {
			return s, nil
		}
		done[s.Kind] = true
		for _, step := range p.Steps {
			if step.Terminal && i.Terminal == nil {
				return s, nil
			}
			i.Step(step)
			output, err := i.run(ctx, step)
			switch {
			case ctx.Err() != nil:
				return Look(i.Root), ctx.Err()
			case step.Command == update.Command:
				lists = output // some source of many may be away: the installation tells whether that matters
			case err != nil:
				return Look(i.Root), explain(step, output, lists, err)
			}
		}
	}
}

// aptConf is for apt as long as gpulab runs it: nothing is asked, configuration files of the machine's own stay, and
// somebody else's apt is waited for.
const aptConf = `APT::Status-Fd "3";
DPkg::Lock::Timeout "600";
DPkg::Options { "--force-confdef"; "--force-confold"; };
`

// patience is how long apt has to end in order once it was interrupted.
const patience = 2 * time.Minute

// run runs one step and returns the end of what it printed.
func (i Installer) run(ctx context.Context, step Step) (output string, err error) {
	conf, err := os.CreateTemp("", "gpulab-apt-*.conf")
	if err != nil {
		return "", err
	}
	defer os.Remove(conf.Name())
	text := aptConf
	if own := os.Getenv("APT_CONFIG"); own != "" {
		text = "#include \"" + own + "\";\n" + text
	}
	_, err = conf.WriteString(text)
	if err = errors.Join(err, conf.Close()); err != nil {
		return "", err
	}
	status, progress, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer status.Close()

	cmd := exec.CommandContext(ctx, "sh", "-c", step.Command)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "APT_LISTCHANGES_FRONTEND=none", "NEEDRESTART_MODE=l",
		"LC_ALL=C.UTF-8", "APT_CONFIG="+conf.Name())
	cmd.Env = append(cmd.Env, i.Env...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{progress}
	fmt.Fprintf(i.Log, "\n# %s\n%s\n", step.Why, step.Command)
	from, err := i.Log.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	if step.Terminal {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = i.Terminal, i.Terminal, i.Terminal
	} else {
		cmd.Stdout, cmd.Stderr = i.Log, i.Log
		// A session of its own: Ctrl-C reaches apt once, from here, and dpkg ends the package that it is at.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
		cmd.WaitDelay = patience
	}
	err = cmd.Start()
	_ = progress.Close()
	if err != nil {
		return "", err
	}
	var reading sync.WaitGroup
	reading.Go(func() { i.report(status) })
	err = cmd.Wait()
	_ = status.SetReadDeadline(time.Now().Add(time.Second)) // the service again
	reading.Wait()
	return i.printed(from), err
}

// printed is what a command has printed from an offset of the log on, the end of it where it is long.
func (i Installer) printed(from int64) string {
	const most = 256 << 10
	end, err := i.Log.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	from = max(from, end-most)
	data := make([]byte, end-from)
	n, _ := i.Log.ReadAt(data, from) // what cannot be read explains nothing
	return string(data[:n])
}

// report reads apt's own progress: "dlstatus:3:17.5:Retrieving …", "pmstatus:package:43.2:Unpacking …".
func (i Installer) report(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		f := strings.SplitN(lines.Text(), ":", 4)
		if len(f) < 4 || f[0] != "dlstatus" && f[0] != "pmstatus" {
			continue
		}
		if percent, err := strconv.ParseFloat(f[2], 64); err == nil && i.Progress != nil {
			i.Progress(percent, strings.TrimSpace(f[3]))
		}
	}
}

var (
	noNetwork = regexp.MustCompile(`(?i)(could not resolve|temporary failure resolving|could not connect|` +
		`unable to connect|network is unreachable|no route to host|connection (failed|timed out|refused)|` +
		`cannot initiate the connection)`)
	noPackage = regexp.MustCompile(`(?:Unable to locate package|` +
		`Package) '?([a-z0-9.+:~-]+)'?(?: has no installation candidate)?`)
	proxyAuth = regexp.MustCompile(`\b407\s+Proxy`)
)

// explain turns a failed step into a sentence; lists is what fetching the lists of packages said before.
func explain(step Step, output, lists string, err error) error {
	var wrong []string
	for line := range strings.Lines(output) {
		if words, is := strings.CutPrefix(strings.TrimSpace(line), "E: "); is {
			wrong = append(wrong, words)
		}
	}
	switch m := noPackage.FindStringSubmatch(strings.Join(wrong, "\n")); {
	case proxyAuth.MatchString(output) || m != nil && proxyAuth.MatchString(lists):
		return errors.New("the proxy wants a name and a password of apt; write them into a file below /etc/apt/apt.conf.d " +
			"(Acquire::http::Proxy) and try again")
	case noNetwork.MatchString(output) || m != nil && noNetwork.MatchString(lists):
		return errors.New("apt does not reach the servers that have the driver's packages; connect this machine to the " +
			"network, or name the way there (`gpulab init --proxy http://proxy.example.org:3128`), and try again: what has " +
			"been done stays")
	case strings.Contains(output, "No space left on device"):
		return errors.New("there is no space left for the driver's packages; free some and try again: what has been " +
			"done stays")
	case m != nil && strings.HasPrefix(m[1], "linux-headers-"):
		return fmt.Errorf("apt knows no package %s, because there is a newer kernel by now; run `apt-get update && "+
			"apt-get dist-upgrade`, reboot, and try again", m[1])
	case m != nil:
		return fmt.Errorf("apt knows no package %s; run `apt-get update`, see whether it says why, and try again", m[1])
	case len(wrong) > 0:
		return fmt.Errorf("%s: %s", strings.Fields(step.Command)[0], strings.Join(wrong, " "))
	}
	words := strings.TrimSpace(output)
	if at := strings.LastIndexByte(words, '\n'); at >= 0 {
		words = words[at+1:]
	}
	if words == "" {
		words = err.Error()
	}
	return fmt.Errorf("%s: %s", strings.Fields(step.Command)[0], words)
}
