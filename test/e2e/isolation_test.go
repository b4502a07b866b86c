//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// hubCalls asks the Hub API from inside a notebook, with the token it has.
const hubCalls = `import json, os, urllib.error, urllib.request
def call(method, path, body=None):
    request = urllib.request.Request(os.environ["JUPYTERHUB_API_URL"] + path, method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"]})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
`

// testNotebookToken: what a notebook may ask of the hub is what it needs to
// know its own visitors, and nothing else.
func testNotebookToken(t *testing.T, a *appliance) {
	k := a.second.in(t)
	k.run(t, hubCalls)
	if got := k.run(t, `status, body = call("GET", "/user"); print(status, json.loads(body)["name"], "`+adminHandle+`" in body)`); got != "200 "+guestHandle+" False" {
		t.Errorf("asked for itself, the hub answers %q", got)
	}
	for _, call := range [][2]string{
		{"POST", "/users/" + guestHandle + "/servers/more"},
		{"POST", "/users/" + guestHandle + "/server"},
		{"POST", "/users/" + guestHandle + "/tokens"},
		{"POST", "/users/" + adminHandle + "/servers/more"},
		{"POST", "/users/mallory"},
		{"GET", "/users"},
		{"GET", "/users/" + adminHandle},
		{"GET", "/users/" + adminHandle + "/servers/work/progress"},
		{"DELETE", "/users/" + adminHandle + "/servers/work"},
		{"DELETE", "/users/" + guestHandle + "/servers/play"},
		{"PATCH", "/users/" + guestHandle},
		{"GET", "/services"},
		{"GET", "/groups"},
		{"GET", "/proxy"},
		{"POST", "/proxy"},
		{"POST", "/shutdown"},
	} {
		if got := k.run(t, fmt.Sprintf("print(call(%q, %q, {'admin': True} if %[1]q != 'GET' else None)[0])", call[0], call[1])); got != "403" && got != "404" && got != "405" {
			t.Errorf("%s %s with a notebook's token: status %s", call[0], call[1], got)
		}
	}
	if pods := strings.Fields(a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-A", "-l", "app.kubernetes.io/component=notebook", "-o", "name")); len(pods) != 2 {
		t.Errorf("notebook pods: %v, want two", pods)
	}
	a.checkKept(t, a.notebookPods(t))
}

// connect tells for each address in a list whether a connection to it is made.
const connect = `import concurrent.futures, json, socket
def reach(target):
    with socket.socket() as s:
        s.settimeout(3)
        return s.connect_ex(tuple(target)) == 0
targets = json.loads(%q)
with concurrent.futures.ThreadPoolExecutor(64) as pool:
    print(json.dumps(list(pool.map(reach, targets))))`

const metadata = "169.254.169.254"

// testNotebookReaches: from a notebook there is the hub, the cluster's name
// service and the world outside; nothing else of machine, cluster and people.
func testNotebookReaches(t *testing.T, a *appliance) {
	// A cloud's metadata service lies beyond the default route.
	a.MustRunVisitor(a.ctx, "ip", "address", "add", metadata+"/32", "dev", "br0")
	t.Cleanup(func() { a.MustRunVisitor(a.ctx, "ip", "address", "del", metadata+"/32", "dev", "br0") })
	private := []string{"10.200.0.1", "172.20.0.1", "192.168.77.1", "100.64.7.7"}
	for _, address := range private {
		a.MustRunVisitor(a.ctx, "ip", "address", "add", address+"/32", "dev", "br0")
		t.Cleanup(func() { a.MustRunVisitor(a.ctx, "ip", "address", "del", address+"/32", "dev", "br0") })
	}
	for _, address := range append([]string{lab.InternetAddress, lab.VisitorAddress, metadata}, private...) {
		port := "8080"
		if address == metadata {
			port = "80"
		}
		address = net.JoinHostPort(address, port)
		listener, err := a.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
	}
	a.first.in(t).run(t, `import socket; door = socket.create_server(("", 40000))`)
	ip := func(selector string) string {
		return a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-A", "-l", selector, "-o", "jsonpath={.items[0].status.podIP}")
	}
	service := func(namespace, name string) string {
		return a.MustGpulab(a.ctx, "kubectl", "-n", namespace, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	}
	bridge := strings.TrimSpace(a.MustRun(a.ctx, "sh", "-c", "ip -4 -o address show cni0 | sed 's|.* inet ||; s|/.*||'"))
	hubPod, notebook := ip("app.kubernetes.io/component=hub"), ip("gpulab.dev/user="+adminHandle)

	type target struct {
		address string
		port    int
		allowed bool
	}
	targets := []target{
		{hubPod, 8081, true},
		{service("gpulab-system", "hub"), 8081, true},
		{service("kube-system", "kube-dns"), 53, true},
		{lab.InternetAddress, 8080, true},
		{lab.VisitorAddress, 8080, false},
		{metadata, 80, false},
		{service("default", "kubernetes"), 443, false},
		{service("gpulab-system", "gpulab"), 443, false},
		{service("gpulab-system", "kueue-webhook-service"), 443, false},
		{ip("k8s-app=kube-dns"), 9153, false},
		{ip("control-plane=controller-manager"), 9443, false},
		{notebook, 8888, false},
		{notebook, 40000, false},
	}
	for _, address := range private {
		targets = append(targets, target{address, 8080, false})
	}
	ports := append(a.listening(t), a.nodePort(t))
	for _, port := range []int{80, 443, 6443, 8443, 10250} {
		if !slices.Contains(ports, port) {
			t.Errorf("the machine does not listen on port %d", port)
		}
	}
	for _, address := range []string{lab.Address, bridge} {
		for _, port := range ports {
			targets = append(targets, target{address, port, false})
		}
	}
	var list [][2]any
	for _, x := range targets {
		list = append(list, [2]any{x.address, x.port})
		// What the machine itself does not reach would prove nothing.
		dial := fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", x.address, x.port)
		if a.Run(a.ctx, "timeout", "5", "bash", "-c", dial).Code != 0 {
			t.Errorf("nothing answers at %s:%d", x.address, x.port)
		}
	}
	encoded, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	var reached []bool
	if err := json.Unmarshal([]byte(a.second.in(t).run(t, fmt.Sprintf(connect, encoded))), &reached); err != nil {
		t.Fatal(err)
	}
	for i, x := range targets {
		if reached[i] != x.allowed {
			t.Errorf("%s:%d is reached from a notebook: %t, want %t", x.address, x.port, reached[i], x.allowed)
		}
	}
	t.Run("the head reaches notebooks of other machines", func(t *testing.T) {
		own := strings.Fields(a.MustRun(a.ctx, "sh", "-c", "for i in flannel.1 cni0; do ip -4 -o address show $i | sed 's|.* inet ||; s|/.*|/32|'; done"))
		let := strings.Fields(a.MustGpulab(a.ctx, "kubectl", "-n", "user-"+guestHandle, "get", "networkpolicy", "notebook", "-o", "jsonpath={.spec.ingress[*].from[*].ipBlock.cidr}"))
		slices.Sort(own)
		if len(own) != 2 || !slices.Equal(own, let) {
			t.Errorf("from %v it comes, and %v may", own, let)
		}
	})
	t.Run("the tunnel between machines", func(t *testing.T) {
		// Whoever writes to it puts packets into the pods' network past all rules.
		if got := a.second.in(t).run(t, fmt.Sprintf(`import socket
for address in (%q, %q):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(1)
        s.connect((address, 8472))
        for _ in range(10): # the kernel refuses a few packets each second, and drops the others
            try:
                s.send(b"x" * 50)
                s.recv(1)
            except ConnectionRefusedError:
                print("refused")
                break
            except TimeoutError:
                pass`, lab.Address, bridge)); got != "refused\nrefused" {
			t.Errorf("packets to it are %q", got)
		}
	})
	t.Run("a closed address is refused at once", func(t *testing.T) {
		if got := a.second.in(t).run(t, fmt.Sprintf(`import errno, socket, time
time.sleep(7) # see above
began = time.monotonic()
with socket.socket() as s:
    s.settimeout(3)
    print(errno.errorcode[s.connect_ex((%q, 8080))], time.monotonic() - began < 0.5)`, private[0])); got != "ECONNREFUSED True" {
			t.Errorf("it ends with, and soon: %s", got)
		}
	})
	t.Run("an address that the machine gets later", func(t *testing.T) {
		// A public one: private ones are closed whosever they are.
		const later = "198.51.100.1"
		a.MustRun(a.ctx, "ip", "address", "add", later+"/24", "dev", "eth0")
		t.Cleanup(func() { a.MustRun(a.ctx, "ip", "address", "del", later+"/24", "dev", "eth0") })
		k := a.second.in(t)
		try := fmt.Sprintf(connect, fmt.Sprintf("[[%q, 443], [%[1]q, 6443], [%[1]q, 10250]]", later))
		// gpulab looks for addresses every two seconds, and Kubernetes follows.
		a.eventually(t, "it is closed to notebooks", func() bool {
			return k.run(t, try) == "[false, false, false]"
		})
	})
	t.Run("nothing of others is mounted", func(t *testing.T) {
		k := a.second.in(t)
		if got := k.run(t, `import os; print(sorted(os.listdir("/home")), os.path.exists("/var/run/secrets"))`); got != "['"+guestHandle+"'] False" {
			t.Errorf("homes and Kubernetes' secrets in the notebook: %s", got)
		}
		for home := range strings.FieldsSeq(a.MustRun(a.ctx, "sh", "-c", "stat -c %a,%u /var/lib/gpulab/homes/*")) {
			if !regexp.MustCompile(`^700,[2-5]\d{4}$`).MatchString(home) {
				t.Errorf("a home has the rights and owner %s", home)
			}
		}
	})
	t.Run("the hub's proxy API needs its token", func(t *testing.T) {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			if status, body, _ := request(t, a.HTTPClient(a.ca), method, pages+"/hub-proxy/api/routes/user/"+adminHandle+"/work", nil); status != http.StatusForbidden {
				t.Errorf("%s without a token: status %d\n%.300s", method, status, body)
			}
		}
	})
}

// listening are the ports of TCP that the host offers to others.
func (a *appliance) listening(t *testing.T) (ports []int) {
	t.Helper()
	for line := range strings.Lines(a.MustRun(a.ctx, "cat", "/proc/net/tcp", "/proc/net/tcp6")) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != "0A" {
			continue
		}
		address, hex, _ := strings.Cut(f[1], ":")
		port, err := strconv.ParseInt(hex, 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Trim(address, "0") == "" && !slices.Contains(ports, int(port)) {
			ports = append(ports, int(port))
		}
	}
	return ports
}

// nodePort opens a port of the machine that leads to a pod, until the test ends.
func (a *appliance) nodePort(t *testing.T) int {
	t.Helper()
	a.MustGpulab(a.ctx, "kubectl", "-n", "kube-system", "expose", "service", "kube-dns", "--name=door", "--type=NodePort", "--protocol=TCP", "--port=9153", "--target-port=9153")
	t.Cleanup(func() { a.MustGpulab(a.ctx, "kubectl", "-n", "kube-system", "delete", "service", "door") })
	port, err := strconv.Atoi(a.MustGpulab(a.ctx, "kubectl", "-n", "kube-system", "get", "service", "door", "-o", "jsonpath={.spec.ports[0].nodePort}"))
	if err != nil {
		t.Fatal(err)
	}
	a.eventually(t, "the port leads to the pod", func() bool {
		return a.Run(a.ctx, "timeout", "2", "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", lab.Address, port)).Code == 0
	})
	return port
}

// ownServer is what a student puts in the place of the notebook server: it
// writes down what its visitors send, and tries to get more out of their browsers.
const ownServer = `import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        with open(os.path.expanduser("~/visits.txt"), "a") as f:
            f.write(self.requestline + "\n" + str(self.headers) + "\n")
        page = b"<title>mine</title><body>all yours"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.send_header("X-JupyterHub-Version", "6.1.1")
        for cookie in ("__Host-gpulab=stolen; Path=/; Secure", "__Host-Http-gpulab=stolen; Path=/; Secure; HttpOnly", "jupyterhub-hub-login=stolen; Path=/hub/",
                       "gpulab-hub=1; Path=/hub/", "mine=1; Path=/"):
            self.send_header("Set-Cookie", cookie)
        self.send_header("Service-Worker-Allowed", "/")
        self.send_header("Clear-Site-Data", '"cookies"')
        self.end_headers()
        self.wfile.write(page)
    do_POST = do_PUT = do_HEAD = do_GET
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("", 8888), Handler).serve_forever()
`

// testOwnServer: a student decides what their notebook serves. It gets no
// cookie of a visitor, and acts for nobody.
func testOwnServer(t *testing.T, a *appliance) {
	// An image of the lab's own may read a file of the home before the notebook server starts: bash reads BASH_ENV.
	notebook := a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-A", "-l", "gpulab.dev/user="+guestHandle,
		"-o", "jsonpath={.items[0].spec.containers[0].image}")
	file, _ := writeImage(t, a, "BASH_ENV=$HOME/mine.sh")
	a.MustGpulab(a.ctx, "images", "import", file)
	tag := func(from, to string) {
		a.MustRun(a.ctx, "sh", "-c", `PATH=/var/lib/gpulab/bin/current:$PATH
			exec bash -c 'exec -a ctr k3s --address /run/k3s/containerd/containerd.sock -n k8s.io images tag --force "$0" "$1"' "$0" "$1"`, from, to)
	}
	const kept = "lab.example/notebook:kept"
	tag(notebook, kept)
	tag(torchImage, notebook)
	t.Cleanup(func() { tag(kept, notebook) })
	k := a.second.in(t)
	k.run(t, fmt.Sprintf(`import os
open(os.path.expanduser("~/mine.py"), "w").write(%q)
open(os.path.expanduser("~/mine.sh"), "w").write("""
case $JUPYTERHUB_SERVICE_PREFIX in
*/trap/) exec python3 ~/mine.py ;;
*/doomed/) echo 'no <b>more</b> of this' >&2; exit 1 ;;
esac
""")`, ownServer))
	t.Run("one that ends", func(t *testing.T) {
		b := a.guest.For(t).Tab()
		launch(b, "cpu", "Doomed")
		b.WaitText("main", "ended with exit code 1. Its last line was: no <b>more</b> of this")
	})
	b := a.guest.For(t).Tab()
	launch(b, "cpu", "Trap")
	b.WaitFor("the student's own page", `document.title === "mine"`)
	where := "/user/" + guestHandle + "/trap/"
	notebooks := a.notebooksOf(t, guestHandle)
	if !strings.HasPrefix(b.Location(), notebooks+where) {
		t.Fatalf("the page is at %s", b.Location())
	}

	t.Run("an administrator visits", func(t *testing.T) {
		visitor := a.browser.For(t).Tab()
		for _, at := range []string{hub, notebooks, a.notebooksOf(t, adminHandle)} {
			visitor.Open(at + where + "lab?from=admin")
			visitor.WaitText("body", "belongs to somebody else")
		}
	})
	t.Run("its script reads no session", func(t *testing.T) {
		if got := lab.Evaluate[string](b.For(t), `async () => document.cookie`); strings.Contains(got, "gpulab") || strings.Contains(got, "jupyterhub") {
			t.Errorf("the script sees the cookies %q", got)
		}
	})
	t.Run("its script acts for nobody", func(t *testing.T) {
		// Same site, another origin: the browser sends the session along.
		for path, form := range map[string]string{
			"/launch": "profile=cpu&title=forged",
			"/logout": "",
		} {
			lab.Evaluate[string](b.For(t), `async (url, body) => {
				try {
					return (await fetch(url, {method: "POST", mode: "no-cors", credentials: "include", body,
						headers: {"Content-Type": "application/x-www-form-urlencoded"}})).type;
				} catch (e) { return "not shown" } // sent all the same
			}`, pages+path, form)
		}
		if got := lab.Evaluate[string](b.For(t), `async url => {
			try { return await (await fetch(url, {credentials: "include"})).text() } catch (e) { return "refused" }
		}`, pages+"/"); got != "refused" {
			t.Errorf("the script reads a page of gpulab's:\n%.300s", got)
		}
		home := a.guest.For(t).Tab()
		home.Open(pages + "/")
		home.WaitText("#mine", "Trap")
		if strings.Contains(home.Text("#mine"), "forged") {
			t.Error("the forged form started a notebook")
		}
	})
	t.Run("its cookies stay below its path", func(t *testing.T) {
		home := a.guest.For(t).Tab()
		home.Open(pages + "/")
		home.WaitText("#mine", "Trap")
		if got := lab.Evaluate[string](home, `async () => document.cookie`); strings.Contains(got, "mine=") {
			t.Errorf("gpulab's pages see the cookies %q", got)
		}
	})
	// Without a browser's own rules: what the proxy itself passes on.
	t.Run("what it was sent", func(t *testing.T) {
		client := signIn(t, a, guestHandle, guestPassword)
		for _, c := range []*http.Cookie{
			{Name: "jupyterhub-hub-login", Value: "secret", Path: "/"}, {Name: "jupyterhub-session-id", Value: "secret", Path: "/"},
		} {
			client.Jar.SetCookies(mustURL(t, notebooks), []*http.Cookie{c})
		}
		if status, _, _ := request(t, client, "GET", notebooks+where+"direct", nil); status != http.StatusOK {
			t.Errorf("status %d", status)
		}
		visits := k.run(t, `print(open(os.path.expanduser("~/visits.txt")).read())`)
		for _, want := range []string{"GET " + where + "direct", "X-Forwarded-For: 192.0.2.1"} {
			if !strings.Contains(visits, want) {
				t.Errorf("%q is not among the visits:\n%s", want, visits)
			}
		}
		for _, secret := range []string{"__Host-", "gpulab=", "gpulab-hub", "hub-login", "session-id", "secret", "from=admin", "Authorization"} {
			if strings.Contains(visits, secret) {
				t.Errorf("%q is among what the student's server was sent:\n%s", secret, visits)
			}
		}
	})
	home := a.guest.For(t).Tab()
	home.Open(pages + "/")
	home.Click("#mine", "Stop Trap")
	home.Click("dialog[open]", "Stop")
	waitGone(home, "Trap")
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
