//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// aProgram is a service's program: a page with a WebSocket, a way to crash, and
// what a hostile one would try on a visitor with a notebook.
const aProgram = `
import json, os, sys
import tornado.ioloop, tornado.web, tornado.websocket

PAGE = """<!doctype html><h1>%s</h1><p id="ws">no answer yet</p><script>
const ws = new WebSocket("wss://" + location.host + "/ws")
ws.onopen = () => ws.send("hi")
ws.onmessage = m => document.querySelector("#ws").textContent = m.data
ws.onclose = () => document.querySelector("#ws").textContent = "closed"
</script>"""

HOSTILE = """<!doctype html><pre id="seen">trying</pre><script>
const visitor = new URLSearchParams(location.search).get("visitor"), other = new URLSearchParams(location.search).get("other")
const notebook = new URLSearchParams(location.search).get("notebooks") + "/user/" + visitor
const seen = {}
async function attempt(name, f) { try { seen[name] = await f() } catch (e) { seen[name] = "refused" } }
const element = (kind, fields) => new Promise(done => {
  const e = Object.assign(document.createElement(kind), fields)
  e.onload = () => done("loaded"); e.onerror = () => done("refused"); document.body.append(e)
})
const socket = url => new Promise(done => {
  const ws = new WebSocket(url); ws.onopen = () => done("open"); ws.onerror = () => done("refused")
})
const read = async (url, more) => (await fetch(url, {credentials: "include", ...more})).text();
(async () => {
  await attempt("read", () => read(notebook + "/api/contents"))
  await attempt("put", () => read(notebook + "/api/contents/stolen.txt", {method: "PUT", body: "{}"}))
  await attempt("service", () => read(other))
  await attempt("script", () => element("script", {src: notebook + "/api/status"}))
  await attempt("other script", () => element("script", {src: other}))
  await attempt("socket", () => socket(notebook.replace("https", "wss") + "/api/events/subscribe"))
  await attempt("other socket", () => socket(other.replace("https", "wss") + "ws"))
  await fetch(notebook + "/api/contents", {method: "POST", mode: "no-cors", credentials: "include", body: "{}"}).catch(() => 0)
  await attempt("worker", async () => { await navigator.serviceWorker.register("/sw.js"); return "registered" })
  document.cookie = "gpulab-service-planted=1; Path=/"
  for (const name of ["__Host-gpulab", "__Host-Http-gpulab"])
    for (const rest of ["", "; SameSite=None; Partitioned"]) document.cookie = name + "=planted; Path=/; Secure" + rest
  await attempt("headers", () => read("/user/" + visitor + "/headers"))
  history.pushState(null, "", "/user/" + visitor + "/")
  seen.cookie = document.cookie
  document.querySelector("#seen").textContent = JSON.stringify(seen)
})()
</script>"""

class Page(tornado.web.RequestHandler):
    def get(self, path):
        if path == "crash":
            os._exit(3)
        if path.endswith("/headers"):
            return self.write({"cookie": self.request.headers.get("Cookie", "")})
        if path == "sw.js":
            self.set_header("Content-Type", "text/javascript")
            return self.write("1")
        self.set_cookie("secret", "of-" + sys.argv[1])
        self.write(HOSTILE if path == "hostile" else PAGE % sys.argv[1])

class Echo(tornado.websocket.WebSocketHandler):
    def on_message(self, message):
        self.write_message("you say " + message)

tornado.web.Application([("/ws", Echo), ("/(.*)", Page)]).listen(int(os.environ["GPULAB_SERVICE_PORT"]), "0.0.0.0")
print("listening", flush=True)
tornado.ioloop.IOLoop.current().start()
`

// TestServices is a lab whose people run programs that others open. A service is opened by its group and by nobody
// else, is started again when it crashes, can do nothing to who visits it, and leaves nothing.
//
//test:about internal/notebooks
func TestServices(t *testing.T) {
	t.Parallel()
	a := ready(t, jobsConfig)
	j := newJobs(t, a)
	l := j.terminal
	ada, ben := a.browser.For(t).Tab(), a.guest.For(t).Tab()
	launch(ada, "cpu", "First")
	waitJupyterLab(ada, adminHandle)
	a.MustGpulab(a.ctx, "group", "add", "vision")
	a.MustGpulab(a.ctx, "group", "member", "add", "vision", "cleo", guestHandle)
	l.cp(t, l.script(t, "service.py", aProgram), "lab:service.py")

	l.gpulab(t, 9, []string{"service", "run", "--port", "80", "--", "true"}, "needs the port on which its program listens")
	l.gpulab(t, 9, []string{"service", "tensorboard", "runs"}, "gpulab env create --from tensorboard")
	said := l.gpulab(t, 0, []string{"service", "run", "--name", "board", "--port", "9000", "--share", "group:vision", "--wait", "--", "python3", "service.py", "board"}, "ready", "/service/cleo/board/")
	if strings.Contains(said, "Choosing") {
		t.Errorf("it is ready, and said is how it was before: %s", said)
	}
	t.Log(said)
	board := hub + "/service/cleo/board/"
	ben.Open(board)
	ben.WaitText("h1", "board")
	ben.WaitText("#ws", "you say hi")
	boardAt := lab.Evaluate[string](ben, `() => location.origin + "/"`)
	ben.Open(pages + "/services")
	ben.WaitText("#shared", "board")
	ben.Pictures("services-shared")
	ada.Open(board)
	ada.WaitText("main", "There is no such service, or it is not shared with you.")
	ada.Open(boardAt)
	ada.WaitText("main", "This service is not shared with you.")
	cleo := j.cleo.For(t).Tab()
	cleo.Open(pages + "/services")
	cleo.WaitText("#services", "ready")
	cleo.Pictures("services")

	// A hostile one, which somebody with a notebook visits.
	l.gpulab(t, 0, []string{"service", "run", "--name", "hostile", "--port", "9000", "--share", "lab", "--wait", "--", "python3", "service.py", "hostile"}, "ready")
	l.gpulab(t, 0, []string{"service", "share", "board", "lab"}, "is shared: lab.")
	ada.Open(boardAt) // now she has a cookie of it, too
	ada.WaitText("#ws", "you say hi")
	ada.Open(hub + "/user/" + adminHandle + "/first/api/status")
	ada.WaitText("body", "started")
	ada.Open(hub + "/service/cleo/hostile/hostile?visitor=" + adminHandle + "/first&other=" + boardAt + "&notebooks=" + a.notebooksOf(t, adminHandle))
	ada.WaitText("#seen", "cookie")
	var seen map[string]string
	if err := json.Unmarshal([]byte(ada.Text("#seen")), &seen); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"read", "put", "service", "script", "other script", "socket", "other socket", "worker"} {
		if seen[name] != "refused" {
			t.Errorf("a hostile service: %s: %q", name, seen[name])
		}
	}
	if seen["headers"] != `{"cookie": "secret=of-hostile"}` {
		t.Errorf("a hostile service is sent %s", seen["headers"])
	}
	for _, word := range []string{"of-board", "jupyterhub", "of-hostile"} {
		if strings.Contains(seen["cookie"], word) {
			t.Errorf("its script sees the cookies %s", seen["cookie"])
		}
	}
	if left := a.MustRun(a.ctx, "ls", a.homeOf(t, adminHandle)); strings.Contains(left, "stolen") || strings.Contains(left, "untitled") {
		t.Errorf("it has written to the home of its visitor: %s", left)
	}
	ada.Open(pages + "/")
	ada.WaitText("main", "First") // she is still who she was

	// It crashes, and is started again in the same place.
	began := time.Now()
	// Not as a page: that one would come back by itself, to crash it again.
	cleo.Open(boardAt)
	lab.Evaluate[bool](cleo, `async () => { try { await fetch("crash") } catch {} return true }`)
	a.eventually(t, "it was started again", func() bool {
		return strings.Count(l.gpulab(t, 0, []string{"service", "logs", "board"}), "listening") == 2
	})
	t.Logf("it was started again after %s", time.Since(began).Round(100*time.Millisecond))
	ben.Open(board)
	ben.WaitText("#ws", "you say hi")
	l.gpulab(t, 0, []string{"service", "share", "board", "private"}, "is shared: private.")
	ben.WaitText("#ws", "closed")
	ben.Open(boardAt)
	ben.WaitText("main", "not shared with you")

	// gpulab is killed, and the service goes on.
	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	a.MustGpulab(a.ctx, initArgs...)
	a.eventually(t, "it is to be had again", func() bool {
		cleo.Open(board)
		answers, err := lab.TryEvaluate[bool](cleo, `async () => {
			for (let i = 0; i < 20; i++) {
				if (document.querySelector("#ws")?.textContent === "you say hi") return true
				await new Promise(done => setTimeout(done, 100))
			}
			return false
		}`)
		return err == nil && answers
	})
	if said := l.gpulab(t, 0, []string{"service", "logs", "board"}); strings.Count(said, "listening") != 2 {
		t.Errorf("it did not go on:\n%s", said)
	}
	cleo.Open(pages + "/services")
	cleo.Click("#services", "Stop board")
	cleo.Click("dialog[open]", "Stop it")
	l.gpulab(t, 0, []string{"service", "stop", "hostile"}, "is being stopped")
	a.eventually(t, "nothing is left", func() bool {
		return a.MustGpulab(a.ctx, "kubectl", "get", "pods", "-A", "-l", "app.kubernetes.io/component=service", "-o", "name") == ""
	})
	l.gpulab(t, 0, []string{"services"}, "ended: It was stopped.")
	cleo.Open(board)
	cleo.WaitText("main", "There is no such service")
}
