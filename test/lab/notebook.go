package lab

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
)

// CreateAccount fills in the form of somebody who makes an account of their own.
func (b *Browser) CreateAccount(name, handle, password string) {
	b.t.Helper()
	b.Fill("Your name", name)
	b.Fill("Sign-in name", handle)
	b.Fill("Password", password)
	b.Fill("Password once more", password)
	b.Click("form", "Create the account")
	b.WaitHome()
}

// WaitHome waits for the home page.
func (b *Browser) WaitHome() {
	b.t.Helper()
	b.WaitFor("the home page", `location.pathname === "/" && document.querySelector(".launches")`)
}

// Launch starts a notebook from the home page of the lab at an address, such
// as https://10.99.0.1.
func (b *Browser) Launch(lab, profile, title string) {
	b.t.Helper()
	b.Open(lab + "/")
	b.WaitFor("the launch card for "+profile, fmt.Sprintf(`(() => {
		const form = document.querySelector('form:has(input[name=profile][value=%q])');
		if (!form) return false;
		form.elements.title.value = %q;
		form.querySelector("button").click();
		return true;
	})()`, profile, title))
	b.WaitFor("the progress page", `location.pathname.startsWith("/launches/") && document.querySelector("#launch-state")`)
}

// WaitJupyterLab waits until the progress page has led on to the person's
// JupyterLab, at a port of their own of the lab's host.
func (b *Browser) WaitJupyterLab(lab, handle string) {
	b.t.Helper()
	b.WaitFor("JupyterLab",
		fmt.Sprintf(`location.hostname === new URL(%q).hostname && location.pathname.startsWith(%q) && document.querySelector(".jp-Launcher, .jp-NotebookPanel")`,
			lab, "/user/"+handle+"/"))
	b.WaitFor("an origin of the person's own", `Number(location.port) >= 21000 && Number(location.port) < 22000`)
}

// Kernel is a Python kernel of the notebook that a browser shows, spoken to as
// JupyterLab does: through the page's own WebSocket.
type Kernel struct {
	browser *Browser
	id      string
}

// Answer is what a cell printed.
type Answer struct {
	Output string // stdout, stderr and results, in their order
	Error  string // the exception's name, "" without one
}

// NotebookBase is the notebook's own path, as a JavaScript expression.
const NotebookBase = `location.pathname.match(/^\/user\/[^/]+\/[^/]+\//)[0]`

// NewKernel starts a kernel in the notebook that the browser shows.
func NewKernel(b *Browser) *Kernel {
	b.t.Helper()
	return newKernel(b, "{}")
}

// NewKernelOf is NewKernel for another kernel than the default one, by its name.
func NewKernelOf(b *Browser, name string) *Kernel {
	b.t.Helper()
	return newKernel(b, fmt.Sprintf(`{"name": %q}`, name))
}

func newKernel(b *Browser, body string) *Kernel {
	b.t.Helper()
	id := Evaluate[string](b, `async body => {
		const base = `+NotebookBase+`;
		const token = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)?.[1] ?? "";
		const r = await fetch(base + "api/kernels", {method: "POST", headers: {"X-XSRFToken": token}, body});
		if (!r.ok) throw new Error("POST api/kernels: " + r.status + " " + await r.text());
		return (await r.json()).id;
	}`, body)
	return &Kernel{browser: b, id: id}
}

const execute = `async (kernel, code) => {
	const base = ` + NotebookBase + `;
	// JupyterLab, too, connects again when it could not.
	const connect = () => new Promise((resolve, reject) => {
		const socket = new WebSocket("wss://" + location.host + base + "api/kernels/" + kernel + "/channels");
		socket.onopen = () => resolve(socket);
		socket.onerror = () => reject(new Error("the WebSocket failed"));
	});
	let socket;
	for (let tries = 1; !socket; tries++) {
		try {
			socket = await connect();
		} catch (e) {
			if (tries === 15) throw e;
			await new Promise(resolve => setTimeout(resolve, 2000));
		}
	}
	const id = crypto.randomUUID();
	try {
		return await new Promise((resolve, reject) => {
			const answer = {Output: "", Error: ""};
			setTimeout(() => reject(new Error("no answer from the kernel; so far: " + answer.Output)), 100000);
			socket.onerror = () => reject(new Error("the WebSocket failed"));
			socket.onclose = e => reject(new Error("the WebSocket was closed: " + e.code + " " + e.reason));
			socket.onmessage = e => {
				const m = JSON.parse(e.data);
				if (m.parent_header.msg_id !== id) return;
				if (m.msg_type === "stream") answer.Output += m.content.text;
				if (m.msg_type === "execute_result") answer.Output += m.content.data["text/plain"] + "\n";
				if (m.msg_type === "error") answer.Error = m.content.ename + ": " + m.content.evalue;
				if (m.msg_type === "status" && m.content.execution_state === "idle") resolve(answer);
			};
			socket.send(JSON.stringify({
				header: {msg_id: id, msg_type: "execute_request", username: "", session: id, version: "5.3", date: new Date().toISOString()},
				parent_header: {}, metadata: {}, channel: "shell", buffers: [],
				content: {code, silent: false, store_history: false, user_expressions: {}, allow_stdin: false, stop_on_error: true},
			}));
		});
	} finally {
		socket.onclose = null;
		socket.close();
	}
}`

// For returns the same kernel reporting to another test.
func (k *Kernel) For(t testing.TB) *Kernel { return k.Through(k.browser.For(t)) }

// Through returns the same kernel, spoken to through another page of the notebook.
func (k *Kernel) Through(b *Browser) *Kernel { return &Kernel{browser: b, id: k.id} }

// Run executes a cell and returns what it printed; an exception ends the test.
func (k *Kernel) Run(code string) string {
	k.browser.t.Helper()
	a, err := k.Try(code)
	if err != nil || a.Error != "" {
		k.browser.t.Fatalf("cell\n%s\nfailed: %s %v\n%s", code, a.Error, err, a.Output)
	}
	return strings.TrimSpace(a.Output)
}

// Try executes a cell that may fail.
func (k *Kernel) Try(code string) (Answer, error) {
	return TryEvaluate[Answer](k.browser, execute, k.id, code)
}

// RunAsJob chooses File, Run as Job… for the notebook that JupyterLab shows.
func RunAsJob(b *Browser) {
	b.t.Helper()
	b.Mouse("the notebook", CodeCells+`[0]?.querySelector(".cm-content")`)
	Menu(b, "File", "Run as Job…")
}

// Menu chooses an entry of JupyterLab's menus with the mouse, by the labels on the way there.
func Menu(b *Browser, labels ...string) {
	b.t.Helper()
	selector := ".lm-MenuBar-itemLabel"
	for _, label := range labels {
		b.Mouse(label, fmt.Sprintf(`[...document.querySelectorAll(%q)].find(e => e.innerText.trim() === %q)`, selector,
			label))
		selector = ".lm-Menu-item:not(.lm-mod-disabled) .lm-Menu-itemLabel"
	}
}

// TypeCell opens a new notebook in JupyterLab by hand, types a cell, runs it
// and returns what is shown below it.
func TypeCell(b *Browser, code string) string {
	b.t.Helper()
	return typeCell(b, `.jp-LauncherCard[data-category="Notebook"]`, code)
}

// TypeCellIn is TypeCell for the kernel of that title.
func TypeCellIn(b *Browser, kernel, code string) string {
	b.t.Helper()
	return typeCell(b, fmt.Sprintf(`.jp-LauncherCard[data-category="Notebook"][title=%q]`, kernel), code)
}

func typeCell(b *Browser, card, code string) string {
	b.t.Helper()
	b.ClickOn(card)
	b.WaitFor("an idle kernel", `document.querySelector('.jp-Notebook-ExecutionIndicator[data-status="idle"]')`)
	return runCell(b, 0, code)
}

// CodeCells are the code cells of the notebook that JupyterLab shows, as a
// JavaScript expression.
const CodeCells = `[...document.querySelectorAll(".jp-Notebook .jp-CodeCell")]`

// runCell types a cell, runs it and returns what is shown below it. JupyterLab
// puts another cell in the place of one that somebody types into while the
// notebook is still being loaded, and drops what is run before its session is
// connected, although it shows an idle kernel: then a person does it once more.
func runCell(b *Browser, number int, code string) string {
	b.t.Helper()
	asked := 0
	for deadline := time.Now().Add(b.patience); time.Now().Before(deadline); time.Sleep(time.Second) {
		state := Evaluate[string](b, `async number => {
			const cell = `+CodeCells+`[number], editor = cell?.querySelector(".cm-content");
			if (cell?.querySelector(".jp-OutputArea-output")?.innerText.trim()) return "done";
			if (document.querySelector(".jp-Dialog")) return "asked";
			if (!editor || cell.querySelector(".jp-InputPrompt").innerText.trim() !== "[ ]:") return "busy";
			editor.focus();
			if (document.activeElement !== editor) return "busy";
			return editor.innerText.trim() ? "typed" : "empty";
		}`, number)
		if state == "done" {
			break
		}
		if state == "asked" {
			if b.overwrites && answer(b, "File Changed", "Overwrite") {
				continue
			}
			if asked++; asked > 10 {
				b.Fail("the cell's output", errors.New("JupyterLab asks something"))
			}
			continue
		}
		if state == "empty" {
			b.Type(code)
		}
		if state != "busy" {
			b.Press(kb.Enter, kb.ModifierShift)
		}
	}
	output := fmt.Sprintf(`%s[%d]?.querySelector(".jp-OutputArea-output")?.innerText.trim()`, CodeCells, number)
	b.WaitFor("the cell's output", output)
	return Evaluate[string](b, `async () => `+output)
}

// answer clicks a button of a question that JupyterLab asks, by the texts of both. It is false when JupyterLab does not
// ask that.
func answer(b *Browser, question, button string) bool {
	b.t.Helper()
	return Evaluate[bool](b, `async (question, button) => {
		const dialog = [...document.querySelectorAll(".jp-Dialog")].find(d => d.querySelector(".jp-Dialog-header")?.innerText.trim() === question);
		const found = [...dialog?.querySelectorAll("button") ?? []].find(b => b.innerText.trim() === button);
		found?.click();
		return Boolean(found);
	}`, question, button)
}

// NextCell types a cell below the last one of the notebook that JupyterLab
// shows, runs it and returns what is shown below it. The page may just have lost
// its kernel: what it dropped is run once more, as a person does.
func NextCell(b *Browser, code string) string {
	b.t.Helper()
	number := Evaluate[int](b, `async () => `+CodeCells+`.length - 1`)
	return runCell(b, number, code)
}
