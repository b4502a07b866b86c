//go:build deb

package deb

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/packaging/gobuild"
	"github.com/gpulab/gpulab/test/lab"
)

// The person of the story.
const (
	handle   = "ada"
	password = "a quiet green lamp"
)

// TestMachine is the life of a machine that somebody carries two files to, who
// has no network: it becomes a lab, is restarted, upgraded, rebooted, taken off
// and put back, and in the end nothing of gpulab is left.
//
//test:about packaging/deb internal/journal internal/power
func TestMachine(t *testing.T) {
	packages, newer := quick(t), anotherVersion(t)
	l := &life{machine: boot(t)}
	l.put(packages, "/old")
	l.put(newer, "/new")
	l.install, l.upgrade = "apt-get -q -y install /old/*.deb", "apt-get -q -y install /new/*.deb"
	l.tell(t, []chapter{
		{"half a package", (*life).halfPackage},
		{"no network yet", (*life).noNetworkYet},
		{"install", (*life).installed},
		{"first cell", (*life).firstCell},
		{"restart", (*life).restarted},
		{"upgrade", (*life).upgraded},
		{"reboot", (*life).rebooted},
		{"remove and come back", (*life).removed},
		{"purge", (*life).purged},
	})
}

// TestInstall is the way from two packages on a machine without a network to a
// first cell, and off the machine again.
//
//test:gate
func TestInstall(t *testing.T) {
	packages := quick(t)
	l := &life{machine: boot(t), install: "apt-get -q -y install /old/*.deb"}
	l.put(packages, "/old")
	l.tell(t, []chapter{
		{"install", (*life).installed},
		{"first cell", (*life).firstCell},
		{"purge", (*life).purged},
	})
}

// life is one machine's; the chapters share it, in their order.
type life struct {
	machine
	whole            *testing.T // of which the chapters are parts
	install, upgrade string     // shell scripts
	before           lab.Snapshot
	browser          *lab.Browser
	kernel           *lab.Kernel
	began            time.Time
	stages           []string // of the way to the first cell, with when they ended
}

type chapter struct {
	name string
	run  func(*life)
}

// tell runs the chapters, each of which builds on those before.
func (l *life) tell(t *testing.T, chapters []chapter) {
	l.whole = t
	for _, c := range chapters {
		if !t.Run(c.name, func(t *testing.T) {
			l.t = t
			if l.browser != nil {
				l.browser, l.kernel = l.browser.For(t), l.kernel.For(t)
			}
			c.run(l)
		}) {
			l.t = t
			t.Fatalf("the rest builds on %q\n%s", c.name, l.journal())
		}
		l.t = t
	}
}

// halfPackage: of a package whose download broke off apt says so, and nothing
// on the machine changes.
func (l *life) halfPackage() {
	l.before = l.traces()
	l.run("mkdir /half && head -c 50000000 /old/gpulab_*.deb >/half/gpulab.deb")
	for script, says := range map[string]string{
		"apt-get -q -y install /half/gpulab.deb": "Could not read meta data from /half/gpulab.deb",
		"dpkg --install /half/gpulab.deb":        "error processing archive /half/gpulab.deb",
	} {
		if out, err := l.try(script); err == nil || !strings.Contains(out, says) {
			l.t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
	l.run("rm -r /half")
	l.compare("half a package", l.before)
	if out := l.run0("dpkg --audit; dpkg-query -W -f '${db:Status-Status}' gpulab 2>/dev/null"); out != "" && out != "not-installed" {
		l.t.Errorf("dpkg knows of half a package:\n%s", out)
	}
}

// noNetworkYet: without a network init says what to do, and one that has been started
// without it waits. A removal ends what waits, and a purge leaves nothing.
func (l *life) noNetworkYet() {
	l.run(l.install + "; ip address flush dev eth0")
	if out, err := l.try("gpulab init --yes --gpus simulated"); err == nil || !strings.Contains(out, "Connect it") {
		l.t.Errorf("init without a network: %v\n%s", err, out)
	}
	l.run("systemctl enable --now gpulab")
	if out := l.run0("systemctl is-enabled gpulab; systemctl is-active gpulab; gpulab status"); !strings.Contains(out, "enabled\nactive") || !strings.Contains(out, "no network address") {
		l.t.Errorf("while it waits for a network gpulab is %s", out)
	}
	l.run("apt-get -q -y remove gpulab gpulab-images")
	if out := l.run0("pgrep -l gpulab; systemctl is-active gpulab-pods | grep -v inactive; find /etc/systemd/system /run -name '*gpulab*'"); out != "" {
		l.t.Errorf("a removal before there is a network leaves\n%s", out)
	}
	l.run("apt-get -q -y purge gpulab gpulab-images; ip address add 10.98.0.1/24 dev eth0; ip route add default via 10.98.0.254")
	l.compare("a removal and a purge before there is a network", l.before)
}

// installed: an installation alone starts and enables nothing.
func (l *life) installed() {
	if l.before == nil {
		l.before = l.traces()
	}
	l.began = time.Now()
	l.run(l.install)
	l.stage("installed")
	if out := l.run0("systemctl is-enabled gpulab; systemctl is-active gpulab gpulab-pods"); out != "disabled\ninactive\ninactive" {
		l.t.Errorf("after an installation alone gpulab is %s", out)
	}
}

var (
	linkPattern = regexp.MustCompile(`https://\S+/setup\?token=\S+`)
	stageLine   = regexp.MustCompile(`(?m)^✓ .*[0-9] s\b.*$`)
)

// firstCell: from `gpulab init` to the output of a cell that somebody typed.
func (l *life) firstCell() {
	printed := l.run("gpulab init --yes --gpus simulated")
	l.stage("a lab")
	for _, line := range stageLine.FindAllString(printed, -1) {
		l.t.Log(line)
	}
	if out := l.run("systemctl is-enabled gpulab; systemctl is-active gpulab gpulab-pods"); out != "enabled\nactive\nactive" {
		l.t.Errorf("after init gpulab is %s", out)
	}
	l.browser = l.machine.browser(l.whole).For(l.t) // for the chapters to come, too
	b := l.browser
	b.Open(linkPattern.FindString(printed))
	b.CreateAccount("Ada Lovelace", handle, password)
	l.stage("somebody signed in")
	b.Launch(pages, "gpu", "Story")
	b.WaitJupyterLab(notebooksAt, handle)
	l.stage("JupyterLab")
	if out := lab.TypeCell(b, "print(6 * 7)"); out != "42" {
		l.t.Errorf("the first cell printed %q", out)
	}
	l.stage("first executed cell")
	l.t.Logf("from two packages on a bare machine:\n%s", strings.Join(l.stages, "\n"))
	l.startClock()
}

func (l *life) stage(what string) {
	l.stages = append(l.stages, fmt.Sprintf("  %5.1f s  %s", time.Since(l.began).Seconds(), what))
}

// startClock has a kernel of the notebook count: every fiftieth of a second, by a
// clock of its own. What it has in memory tells it from one that was started anew.
func (l *life) startClock() {
	l.kernel = lab.NewKernel(l.browser)
	l.kernel.Run(`import threading, time
precious, pauses = 6 * 7, []
def count():
    last = time.monotonic()
    while True:
        time.sleep(0.02)
        now = time.monotonic()
        pauses.append(now - last)
        last = now
threading.Thread(target=count, daemon=True).start()`)
}

// longestPause is how long the kernel stood still at most since it was asked
// last, in seconds. It must be the same kernel, and JupyterLab's own page, which
// nobody loaded anew, must have found its way back to it.
func (l *life) longestPause(what string) {
	l.t.Helper()
	if out := lab.NextCell(l.browser, "print('still', 40 + 2)"); out != "still 42" {
		l.t.Errorf("after %s a cell in the same page printed %q", what, out)
	}
	out := l.kernel.Run(`print(precious, round(max(pauses), 2)); pauses.clear()`)
	kept, pause, _ := strings.Cut(out, " ")
	seconds, err := strconv.ParseFloat(pause, 64)
	if err != nil || kept != "42" || seconds > 5 {
		l.t.Errorf("over %s the kernel paused for %s s", what, out)
	}
	l.t.Logf("longest pause of the kernel over %s: %s s", what, pause)
}

// notebooks lists the processes of notebooks with when they were started.
const notebooks = `for p in $(pgrep -f '[i]pykernel_launcher'); do echo $p $(cut -d' ' -f22 /proc/$p/stat); done | sort`

// answered calls the notebooks' door over and over while something is done, as
// JupyterLab does. The connection is never refused, and gpulab itself answers:
// that nobody has signed in. One that gpulab was just taking when it ended may
// break; browsers then ask again by themselves.
func (l *life) answered(do func()) {
	l.t.Helper()
	said := l.meanwhile(do, func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, l.onVisitor()[0], append(l.onVisitor()[1:], "sh", "-c",
			`while sleep 0.1; do curl -sk -m `+fmt.Sprint(60*l.slow)+` -o /dev/null -w '%{http_code} %{errormsg}\n' `+firstNotebooks+`/user/ada/story/api; done`)...)
	})
	lines := strings.Split(strings.TrimSpace(said), "\n")
	broken := 0
	for _, line := range lines {
		if line == "000 Empty reply from server" && broken == 0 {
			broken++
		} else if l.slow > 1 && line == "503 " {
			continue // the start takes longer than anybody is made to wait
		} else if !strings.HasPrefix(line+" ", "401 ") {
			l.t.Errorf("one of %d calls was answered with %s", len(lines), line)
		}
	}
}

// meanwhile has a command run as long as something is done, and returns what it printed.
func (l *life) meanwhile(do func(), command func(context.Context) *exec.Cmd) string {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	cmd := command(ctx)
	var said bytes.Buffer
	cmd.Stdout, cmd.WaitDelay = &said, time.Second
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	do()
	cancel()
	_ = cmd.Wait()
	return said.String()
}

// countLocks tells five times a second how many locks of gpulab's logind keeps, from its
// files: programs that ask it take half of an emulated machine. It ends when nobody listens.
const countLocks = `exec bash -c 'exec {never}<> <(:)
while true; do
	n=0
	for file in /run/systemd/inhibit/*; do
		what= who=
		[ -f "$file" ] && while IFS== read -r key value; do
			case $key in WHAT) what=:$value: ;; WHO) who=$value ;; esac
		done <"$file"
		[ "$who" = gpulab ] && [ "${what#*:handle-lid-switch:}" != "$what" ] && n=$((n + 1))
	done
	echo $n || exit
	read -rt 0.2 -u $never
done'`

// awake has the machine stay awake for its notebooks all the time that something is
// done, as logind sees it: a laptop's lid may be closed.
func (l *life) awake(do func()) {
	l.t.Helper()
	const locks = "systemd-inhibit --list --no-legend | grep -c '^gpulab .* handle-lid-switch\\|^gpulab .*:handle-lid-switch '"
	l.wait(time.Minute, "test $("+locks+") = 1")
	seen := strings.Fields(l.meanwhile(do, func(ctx context.Context) *exec.Cmd {
		return l.command(ctx, countLocks)
	}))
	if len(seen) < 5 || slices.Contains(seen, "0") {
		l.t.Errorf("how many locks kept the machine awake, look by look: %v", seen)
	}
	l.wait(time.Minute, "test $("+locks+") = 1") // the next gpulab's alone
}

func (l *life) restarted() {
	processes := l.run(notebooks)
	began := time.Now()
	l.answered(func() {
		l.awake(func() {
			l.run("systemctl restart gpulab")
			l.ready(time.Minute)
			l.t.Logf("a lab again after %s", time.Since(began).Round(time.Second))
		})
	})
	l.longestPause("a restart")
	l.sameNotebooks(processes)
	// systemd keeps the sockets since: they are not somebody else's.
	if printed := l.run("gpulab init --yes"); !strings.Contains(printed, "nothing changed") {
		l.t.Errorf("init on a lab that runs says\n%s", printed)
	}
	l.sameNotebooks(processes)
}

// upgraded: another version, with a kernel at work.
func (l *life) upgraded() {
	processes := l.run(notebooks)
	began := time.Now()
	l.answered(func() {
		l.awake(func() {
			l.run(l.upgrade)
			l.t.Logf("upgraded after %s", time.Since(began).Round(time.Second))
			l.ready(time.Minute)
		})
	})
	l.longestPause("an upgrade")
	l.sameNotebooks(processes)
	if out := l.run("gpulab version; dpkg-query -W -f '${Version}\n' gpulab gpulab-images"); strings.Count(out, newerVersion) != 3 {
		l.t.Errorf("after the upgrade there are %s", out)
	}
	// Init, a restart by hand, and one by the upgrade of both packages together.
	if starts := l.run("journalctl -o cat -u gpulab --since=@" + strconv.FormatInt(l.began.Unix(), 10) + " | grep -c 'Started gpulab'"); starts != "3" {
		l.t.Errorf("gpulab was started %s times by init, a restart and an upgrade", starts)
	}
}

func (l *life) sameNotebooks(before string) {
	l.t.Helper()
	if now := l.run(notebooks); now != before || before == "" {
		l.t.Errorf("the kernels' processes were\n%s\nand are\n%s", before, now)
	}
}

// ready waits until gpulab says that the lab is ready.
func (l *life) ready(limit time.Duration) {
	l.t.Helper()
	l.wait(limit, "gpulab status >/dev/null")
}

// saver is a pod that saves when it is asked to end, which takes it a second.
// Its second container does not listen.
const saver = `apiVersion: v1
kind: Pod
metadata: {name: saver, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: listens
    image: IMAGE
    imagePullPolicy: Never
    command: [python3, -c]
    args:
    - |
      import signal, sys, time
      def end(*_):
          time.sleep(1)
          open("/out/saved", "a").write("saved\n")
          sys.exit(0)
      signal.signal(signal.SIGTERM, end)
      open("/out/listens", "w")
      time.sleep(1e6)
    volumeMounts: [{name: out, mountPath: /out}]
  - name: deaf
    image: IMAGE
    imagePullPolicy: Never
    command: [python3, -c, "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1e6)"]
  volumes: [{name: out, hostPath: {path: /srv/out}}]
`

// rebooted: pods are asked to end and wait for none that does not listen; then
// the lab comes back by itself, and says what became of the notebook.
func (l *life) rebooted() {
	image := l.run(`sed -n 's/.*"ref": "\(.*notebook:.*\)",/\1/p' /usr/share/gpulab/images/images.json`)
	l.run("mkdir -m 777 /srv/out; cat >/srv/out/saver.yaml <<'END'\n" + strings.ReplaceAll(saver, "IMAGE", image) + "END\ngpulab kubectl apply -f /srv/out/saver.yaml")
	l.wait(time.Minute, "test -e /srv/out/listens")
	was := l.run(bootTime)
	began := time.Now()
	l.run("systemctl reboot")
	l.again(was)
	l.t.Logf("down and up again after %s", time.Since(began).Round(time.Second))
	l.ready(3 * time.Minute)
	l.t.Logf("a lab again after %s", time.Since(began).Round(time.Second))
	if out := l.run0("cat /srv/out/saved"); out != "saved" {
		l.t.Errorf("a pod had no time to save: %q", out)
	}
	if out := l.run("journalctl -b -1 -o cat -u gpulab-pods"); !strings.Contains(out, "processes were killed after 10s") {
		l.t.Errorf("nobody ended pods in order:\n%s", out)
	}
	b := l.browser
	b.Open(pages + "/")
	b.WaitText("#mine", "It was interrupted")
	b.WaitText("#mine", "Start again")
	b.Launch(pages, "gpu", "Again")
	b.WaitJupyterLab(notebooksAt, handle)
	if out := lab.NewKernel(b).Run("print(6 * 7)"); out != "42" {
		l.t.Errorf("after a reboot a cell printed %q", out)
	}
}

// removed: a removal ends the lab and keeps what people have, and an
// installation goes on with it.
func (l *life) removed() {
	l.run("apt-get -q -y remove gpulab gpulab-images")
	after := l.traces()
	added := slices.DeleteFunc(l.before.Added(after), func(line string) bool {
		for _, kept := range []string{"files: /etc/gpulab", "files: /var/lib/gpulab", "files: /etc/rancher", "files: /etc/ufw", "files: /srv/out"} {
			if strings.HasPrefix(line, kept) {
				return true
			}
		}
		return false
	})
	for _, line := range added {
		l.t.Error("a removal leaves " + line)
	}
	l.run(l.upgrade + " && gpulab init --yes")
	if out := l.run("gpulab user list"); !strings.Contains(out, handle) {
		l.t.Errorf("a removal did not keep accounts:\n%s", out)
	}
	l.browser.Open(pages + "/")
	l.browser.WaitHome()
}

// purged: homes stay, and nothing else.
func (l *life) purged() {
	l.run("echo work >$(echo /var/lib/gpulab/homes/*)/mine")
	l.run("apt-get -q -y purge gpulab gpulab-images; rm -rf /srv/out")
	if out := l.run("cat /var/lib/gpulab/homes/*/mine"); out != "work" {
		l.t.Errorf("a home holds %q", out)
	}
	l.run("rm -r /var/lib/gpulab")
	l.compare("the purge", l.before)
}

// compare holds the machine against what it was.
func (l *life) compare(what string, before lab.Snapshot) {
	l.t.Helper()
	after := l.traces()
	for _, line := range before.Added(after) {
		l.t.Errorf("%s leaves %s", what, line)
	}
	for _, line := range after.Added(before) {
		l.t.Errorf("%s takes away %s", what, line)
	}
}

// newerVersion is the one that machines are upgraded to.
const newerVersion = "99.0.1"

// anotherVersion returns the folder of packages of this gpulab with newerVersion.
func anotherVersion(t *testing.T) string {
	t.Helper()
	return newer(t, newerVersion, "newer", func() string { return buildVersion(t, newerVersion) })
}

// buildVersion builds a gpulab of another version.
func buildVersion(t *testing.T, version string) string {
	t.Helper()
	gpulab := gobuild.Gpulab(version, filepath.Join(t.TempDir(), "gpulab"))
	program := exec.Command("go", gpulab.Args()...)
	program.Dir, program.Env = repository, gpulab.Env
	must(t, program)
	return gpulab.Out
}
