//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/gpulab/gpulab/test/lab"
)

// kernel is a Python kernel of the notebook that a browser shows, spoken to as
// JupyterLab does: through the page's own WebSocket.
type kernel struct {
	browser *lab.Browser
	id      string
}

// answer is what a cell printed.
type answer struct {
	Output string // stdout, stderr and results, in their order
	Error  string // the exception's name, "" without one
}

// notebookBase is the notebook's own path, as a JavaScript expression.
const notebookBase = `location.pathname.match(/^\/user\/[^/]+\/[^/]+\//)[0]`

// newKernel starts a kernel in the notebook that the browser shows.
func newKernel(b *lab.Browser) *kernel {
	id := lab.Evaluate[string](b, `async () => {
		const base = `+notebookBase+`;
		const token = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)?.[1] ?? "";
		const r = await fetch(base + "api/kernels", {method: "POST", headers: {"X-XSRFToken": token}, body: "{}"});
		if (!r.ok) throw new Error("POST api/kernels: " + r.status + " " + await r.text());
		return (await r.json()).id;
	}`)
	return &kernel{browser: b, id: id}
}

const execute = `async (kernel, code) => {
	const base = ` + notebookBase + `;
	const socket = new WebSocket("wss://" + location.host + base + "api/kernels/" + kernel + "/channels");
	const id = crypto.randomUUID();
	try {
		return await new Promise((resolve, reject) => {
			const answer = {Output: "", Error: ""};
			setTimeout(() => reject(new Error("no answer from the kernel; so far: " + answer.Output)), 100000);
			socket.onerror = () => reject(new Error("the WebSocket failed"));
			socket.onclose = e => reject(new Error("the WebSocket was closed: " + e.code + " " + e.reason));
			socket.onopen = () => socket.send(JSON.stringify({
				header: {msg_id: id, msg_type: "execute_request", username: "", session: id, version: "5.3", date: new Date().toISOString()},
				parent_header: {}, metadata: {}, channel: "shell", buffers: [],
				content: {code, silent: false, store_history: false, user_expressions: {}, allow_stdin: false, stop_on_error: true},
			}));
			socket.onmessage = e => {
				const m = JSON.parse(e.data);
				if (m.parent_header.msg_id !== id) return;
				if (m.msg_type === "stream") answer.Output += m.content.text;
				if (m.msg_type === "execute_result") answer.Output += m.content.data["text/plain"] + "\n";
				if (m.msg_type === "error") answer.Error = m.content.ename + ": " + m.content.evalue;
				if (m.msg_type === "status" && m.content.execution_state === "idle") resolve(answer);
			};
		});
	} finally {
		socket.onclose = null;
		socket.close();
	}
}`

// in returns the same kernel reporting to another test.
func (k *kernel) in(t *testing.T) *kernel {
	return &kernel{browser: k.browser.For(t), id: k.id}
}

// run executes a cell and returns what it printed; an exception ends the test.
func (k *kernel) run(t *testing.T, code string) string {
	t.Helper()
	a, err := k.try(code)
	if err != nil || a.Error != "" {
		t.Fatalf("cell\n%s\nfailed: %s %v\n%s", code, a.Error, err, a.Output)
	}
	return strings.TrimSpace(a.Output)
}

// try executes a cell that may fail.
func (k *kernel) try(code string) (answer, error) {
	return lab.TryEvaluate[answer](k.browser, execute, k.id, code)
}

// typeCell opens a new notebook in JupyterLab by hand, types a cell, runs it
// and returns what is shown below it.
func typeCell(b *lab.Browser, code string) string {
	b.WaitFor("JupyterLab's launcher", `(() => {
		const card = document.querySelector('.jp-LauncherCard[data-category="Notebook"]');
		card?.click();
		return card;
	})()`)
	b.WaitFor("an idle kernel", `document.querySelector('.jp-Notebook-ExecutionIndicator[data-status="idle"]')`)
	// While the notebook is still being loaded, a cell may be put in the place
	// of one that somebody types into.
	for range 10 {
		b.WaitFor("an empty cell", `(() => {
			const cell = document.querySelector(".jp-Notebook .jp-Cell .cm-content");
			cell?.focus();
			return cell && document.activeElement === cell;
		})()`)
		b.Type(code)
		time.Sleep(500 * time.Millisecond)
		if b.Text(".jp-Notebook .jp-Cell .cm-content") != "" {
			break
		}
	}
	b.Press(kb.Enter, kb.ModifierShift)
	// JupyterLab drops what is run before its session is connected, although
	// it shows an idle kernel: then a person runs the cell once more.
	for range 20 {
		time.Sleep(500 * time.Millisecond)
		if b.Text(".jp-Notebook .jp-InputPrompt") != "[ ]:" {
			break
		}
		lab.Evaluate[bool](b, `async () => { document.querySelector(".jp-Notebook .jp-Cell .cm-content").focus(); return true }`)
		b.Press(kb.Enter, kb.ModifierShift)
	}
	b.WaitFor("the cell's output", `document.querySelector(".jp-Notebook .jp-OutputArea-output")?.innerText.trim()`)
	return b.Text(".jp-Notebook .jp-OutputArea-output")
}
