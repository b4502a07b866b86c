// gpulab's part of JupyterLab: its plugins, which are described where they begin.
// It is a federated extension written by hand: the object that JupyterLab asks for
// a module, and the one module. Two parts take the place of JupyterLab's own plugins: of
// two that provide the same, JupyterLab takes the one that comes last. Without this file
// it takes its own.
// See https://jupyterlab.readthedocs.io/en/stable/extension/extension_dev.html
(() => {
  "use strict";

  // notices: what gpulab has to tell the person in front of JupyterLab, such as
  // that the memory of a GPU they share is nearly full, or that a notebook which
  // nobody uses is about to be stopped: with a countdown, and a button that keeps it.

  const every = 10_000; // ms
  const keep = "gpulab:keep-notebook";

  const left = (seconds) => `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;

  function notices(app) {
    const shown = new Map(); // key of a notice → { id of its notification, the notice, when its countdown ends }

    // The countdown comes first: JupyterLab cuts long messages off.
    const message = ({ notice, ends }) =>
      ends ? `Stops in ${left(Math.max(0, Math.ceil((ends - Date.now()) / 1000)))}. ${notice.text}` : notice.text;

    const update = (entry) =>
      app.commands.execute("apputils:update-notification", { id: entry.id, message: message(entry), type: "warning", autoClose: false });

    function hide(key) {
      const { id } = shown.get(key);
      shown.delete(key);
      app.commands.execute("apputils:dismiss-notification", { id });
    }

    async function look() {
      if (document.hidden) return;
      let notices;
      try {
        const answer = await fetch("/gpulab/notices", { headers: { Accept: "application/json" }, cache: "no-store", signal: AbortSignal.timeout(every) });
        if (!answer.ok) return; // signed out, or not behind gpulab
        notices = await answer.json();
      } catch {
        return; // JupyterLab itself says that it is cut off
      }
      for (const key of [...shown.keys()]) {
        if (!notices.some((notice) => notice.key === key)) hide(key);
      }
      for (const notice of notices) {
        const ends = notice.left ? Date.now() + notice.left * 1000 : 0;
        const entry = shown.get(notice.key);
        // One that the person has closed is not shown again.
        if (entry) {
          Object.assign(entry, { notice, ends });
          update(entry);
          continue;
        }
        const fresh = { notice, ends };
        shown.set(notice.key, fresh);
        const options = { autoClose: false };
        if (notice.keep) {
          options.actions = [{ label: "I still need it", commandId: keep, args: { launch: notice.keep }, displayType: "accent" }];
        }
        fresh.id = await app.commands.execute("apputils:notify", { message: message(fresh), type: "warning", options });
      }
    }

    app.commands.addCommand(keep, {
      label: "Keep a notebook that is about to be stopped",
      execute: async ({ launch }) => {
        let text = "gpulab did not answer. Try again, or use the button on the lab's home page.";
        let done = false;
        try {
          const answer = await fetch(`/gpulab/keep?launch=${encodeURIComponent(launch)}`, { method: "POST", headers: { Accept: "application/json" } });
          const said = await answer.json();
          done = said.done === true;
          text = said.text ?? said.message ?? text;
        } catch {
          // The text says so.
        }
        await app.commands.execute("apputils:notify", { message: text, type: done ? "success" : "error", options: { autoClose: done ? 8000 : false } });
        await look();
      },
    });

    app.restored.then(() => {
      look();
      setInterval(look, every);
      setInterval(() => {
        for (const entry of shown.values()) if (entry.ends && entry.id) update(entry);
      }, 1000);
    });
  }

  // connection: what is said when the server does not answer. JupyterLab would ask
  // whether to start the notebook again, whatever is the matter, and a save would fail.
  // Here a notice says what is the matter until the server is back, and saves wait.

  const lookAgain = 2000; // ms
  const connections = 6; // that a browser keeps to one server, of HTTP/1.1
  const probe = 3000; // ms that it may take to see whether one of them works
  const mostTries = 5; // of a request that fails although the server answers, as where a network bounds uploads
  const longest = 10_000; // ms that an answer to such a look may take
  const quiet = 15_000; // ms without a message until a kernel's connection is tried, and ms that the answer may take
  const giveUp = 10_000; // ms until a kernel is tried again that JupyterLab has given up
  const stuck = 75_000; // ms until it is tried anew: the server lets a page wait for a minute while a kernel starts
  const ordered = new Map(); // path of a notebook that is being saved in turn → whether it was cut off meanwhile
  const sent = new Map(); // path → what its save has sent, which may have arrived without the page knowing
  let back; // a promise that the server answers again; undefined while it does
  let read; // gets a file as JupyterLab does, and waits while the server does not answer
  const proofs = new WeakMap(); // kernel → waits until it is known whether the page has all that the kernel has said
  const same = (a, b) => new Date(a).getTime() === new Date(b).getTime(); // of times as the server writes them
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));

  const troubles = {
    away: ["The lab does not answer. This page keeps trying. What you type stays in this page and is saved when the lab answers again."],
    stopped: [
      "This notebook has been stopped. Unsaved changes are only in this page. They are saved when you start the notebook again.",
      "Start it again on the lab’s page",
    ],
    out: [
      "You are signed out. Sign in in another tab, then this page connects again. Until then, unsaved changes are only in this page.",
      "Sign in",
    ],
  };

  // JupyterLab's own notices need a part of it that is fetched from the server.
  function banner() {
    const bar = document.createElement("div");
    bar.className = "gpulab-connection";
    bar.setAttribute("role", "alert");
    bar.style.cssText =
      "position:fixed;z-index:10001;bottom:2.5rem;left:50%;transform:translateX(-50%);box-sizing:border-box;width:max-content;max-width:min(40rem,90vw);display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:center;" +
      "padding:.75rem 1rem;border-radius:4px;font:var(--jp-ui-font-size1)/1.4 var(--jp-ui-font-family);color:var(--jp-ui-font-color1);" +
      "background:var(--jp-layout-color1);border:1px solid var(--jp-warn-color1);border-left-width:6px;box-shadow:var(--jp-elevation-z6)";
    const text = document.createElement("span");
    text.style.flex = "1 1 14rem";
    const link = document.createElement("a");
    // The lab leads on from here to where it can be mended.
    Object.assign(link, { href: window.location.href, target: "_blank" });
    link.style.cssText = "flex:none;color:var(--jp-content-link-color);text-decoration:underline";
    bar.append(text, link);
    return bar;
  }

  function connection(app, { ServerConnection, KernelMessage }) {
    const { contents, kernels, sessions, serverSettings: settings } = app.serviceManager;
    const trouble = (error) => {
      if (error instanceof ServerConnection.NetworkError) return "away";
      return { 401: "out", 424: "stopped", 502: "away", 503: "away", 504: "away" }[error?.response?.status];
    };
    const look = async () => {
      try {
        const init = { cache: "no-store", signal: AbortSignal.timeout(longest) };
        const answer = await ServerConnection.makeRequest(`${settings.baseUrl}api/status`, init, settings);
        // 403: the notebook itself does not know who asks.
        return answer.status === 403 ? "out" : trouble({ response: answer });
      } catch (error) {
        // Browsers allow few connections to one server. Requests on lost connections would use them up.
        const old = Date.now() - longest;
        for (const [stop, since] of pending) if (since < old) stop.abort(new TypeError("The server does not answer"));
        return trouble(error);
      }
    };

    async function watch() {
      let bar;
      for (let now; (now = await look()); await pause(lookAgain)) {
        bar ??= document.body.appendChild(banner());
        const [text, link] = bar.children;
        const [said, leads = ""] = troubles[now];
        if (text.innerText !== said) text.innerText = said;
        link.innerText = leads;
        link.style.display = leads ? "" : "none";
      }
      if (!bar) return pause(lookAgain); // what has failed is not tried again at once
      // JupyterLab itself asks ever less often what is still there.
      const known = [kernels, sessions].map((manager) => manager.refreshRunning());
      await Promise.race([Promise.allSettled(known), pause(longest)]);
      bar.remove();
    }

    const check = () => (back ??= watch().finally(() => (back = undefined)));

    function lost(_, error) {
      if (trouble(error)) check();
    }

    // JupyterLab asks the server about a kernel whose connection failed, and treats the kernel
    // as dead if the lab answers in the server's place. Here the request waits for the server.
    const request = settings.fetch.bind(null);
    const pending = new Map(); // what ends a question → since when it has been asked
    const ask = async (asked, since) => {
      const stop = new AbortController();
      asked.signal.addEventListener("abort", () => stop.abort(asked.signal.reason));
      pending.set(stop, since);
      try {
        return await request(asked, { signal: stop.signal });
      } finally {
        pending.delete(stop);
      }
    };
    // The content of a file may take long, in both directions.
    const long = ({ method, url }) => method !== "GET" || (/\/api\/contents\//.test(url) && !/[?&]content=0/.test(url));
    // Where the network has dropped what was sent, requests on connections that there are get
    // no answer. What waits is ended, and tried again; new requests take up all connections
    // that the browser keeps for later, and end them.
    const dropped = () => {
      for (const stop of pending.keys()) stop.abort(new TypeError("The network has dropped this request"));
      const one = () => request(`${settings.baseUrl}api/status`, { cache: "no-store", signal: AbortSignal.timeout(probe) });
      return Promise.allSettled(Array.from({ length: connections }, one));
    };
    settings.fetch = async (asked, init) => {
      if (!(asked instanceof Request) || init) return request(asked, init); // not JupyterLab's
      const gets = asked.method === "GET";
      const waits = gets && /\/api\/kernels\/[^/]+$/.test(new URL(asked.url).pathname);
      for (;;) {
        let answer, fault;
        try {
          answer = await ask(asked, long(asked) ? Infinity : Date.now());
        } catch (error) {
          fault = error;
        }
        const failed = fault ? fault.name !== "AbortError" : trouble({ response: answer }) || (waits && answer.status === 403);
        if (failed) check();
        if (failed && waits) {
          await back;
          continue;
        }
        if (fault) throw fault;
        return answer;
      }
    };

    // Where a network drops what is sent, as after a change of networks, nothing tells a
    // page so. A message that the server itself answers (gpulab_connection.py) does. What
    // was sent and not heard of is sent again on the next connection; the server takes it once.
    function watched(kernel) {
      let heard = Date.now(); // anything, last
      let since = heard; // the connection has been as it is
      let tried = 0; // when, 0 if that is answered
      let lost = false; // it does not answer, and is made anew
      let answers = false; // servers of older images do not
      const unheard = new Map(); // ID of a request to run something → the request
      kernel.anyMessage.connect((_, { msg, direction }) => {
        if (direction === "send") {
          if (msg.header.msg_type === "execute_request") unheard.set(msg.header.msg_id, msg);
          return;
        }
        heard = Date.now();
        tried = 0;
        unheard.delete(msg.parent_header.msg_id);
        answers ||= msg.parent_header.msg_type === "gpulab_alive";
      });
      const attempt = () => {
        tried ||= Date.now();
        const { username, clientId: session } = kernel;
        kernel.sendControlMessage(KernelMessage.createMessage({ msgType: "gpulab_alive", channel: "control", username, session, content: {} })).dispose();
      };
      kernel.statusChanged.connect((_, status) => {
        if (status.endsWith("restarting")) unheard.clear();
      });
      kernel.connectionStatusChanged.connect((_, status) => {
        since = heard = Date.now();
        tried = 0;
        lost = false;
        const queue = kernel._pendingMessages;
        if (status === "connected") attempt();
        else if (answers) queue?.unshift(...[...unheard.values()].filter((msg) => !queue.includes(msg)));
      });
      proofs.set(kernel, async () => {
        const there = () => answers && !kernel.isDisposed && kernel.connectionStatus === "connected";
        if (there()) attempt();
        while (tried && there()) await pause(20);
      });
      const again = () => kernel.isDisposed || kernel.reconnect().catch(() => {});
      const timer = setInterval(() => {
        const now = Date.now();
        const status = kernel.connectionStatus;
        if (status !== "connected") {
          if (back || now - since < (status === "disconnected" ? giveUp : stuck)) return;
          since = now;
          again();
        } else if (!tried) {
          if (now - heard > quiet) attempt();
        } else if (answers && !lost && now - tried > quiet) {
          lost = true;
          dropped().then(check).then(again);
        }
      }, quiet / 5);
      kernel.disposed.connect(() => clearInterval(timer));
    }
    const connectTo = kernels.connectTo.bind(kernels);
    kernels.connectTo = (options) => {
      const kernel = connectTo(options);
      try {
        watched(kernel);
      } catch (error) {
        console.error("gpulab:connection does not work for this kernel:", error);
      }
      return kernel;
    };

    // A save first reads the file's metadata. A notebook's save has to start anew when the
    // server is back. The old save ends like one that the person cancelled: without a message.
    const anew = () => Object.assign(new Error("the lab is away"), { name: "ModalCancelError", away: true });
    const patient = (ask) => {
      const tries = new Map(); // path → how often in a row it has failed although the server answers
      return async (path, options) => {
        for (;;) {
          try {
            const done = await ask(path, options);
            tries.delete(path);
            return done;
          } catch (error) {
            // The server also answers 403 for a file that the person may not write.
            if (!trouble(error) && (error?.response?.status !== 403 || (await look()) !== "out")) throw error;
            check();
            const failed = (await look()) ? 0 : (tries.get(path) ?? 0) + 1;
            tries.set(path, failed);
            if (failed > mostTries) {
              tries.delete(path);
              throw error;
            }
            if (ordered.has(path)) throw anew();
          }
          await back;
        }
      };
    };
    const get = contents.get.bind(contents);
    read = patient(get);
    contents.get = async (path, options) => {
      if (options?.content !== false) return get(path, options);
      const file = await read(path, options);
      // The answer waited for a lab that was started anew, and the server has written meanwhile.
      if (ordered.get(path)?.()) throw anew();
      return file;
    };
    const save = patient(contents.save.bind(contents));
    contents.save = (path, options) => {
      if (ordered.has(path)) sent.set(path, options?.content);
      return save(path, options);
    };
    return lost;
  }

  // home: what of the person's home the server does not use (gpulab_home.py), said
  // once for as long as it is the same.

  const said = "gpulab:home"; // what was said, in the browser's storage

  function home(app, { ServerConnection }) {
    const settings = app.serviceManager.serverSettings;
    app.restored.then(async () => {
      const answer = await ServerConnection.makeRequest(`${settings.baseUrl}gpulab/home`, { cache: "no-store" }, settings);
      if (!answer.ok) return;
      const { leftOut } = await answer.json();
      const text = JSON.stringify(leftOut);
      if (localStorage.getItem(said) === text) return;
      for (const message of leftOut) {
        await app.commands.execute("apputils:notify", { message, type: "warning", options: { autoClose: false } });
      }
      localStorage.setItem(said, text);
    }).catch(() => {}); // JupyterLab itself says that it is cut off
  }

  // runs: JupyterLab drops a cell that is run while the notebook's kernel is still being
  // started. Here it waits for that, and shows [*]. A cell that is larger than what the
  // server takes in one message, which would end the kernel's connection, is not sent.

  const undecided = 15_000; // ms until JupyterLab is asked again which kernel a notebook wants

  function runs(app, { runCell }, { PageConfig }) {
    const waiting = new WeakMap(); // session → a promise that it has a kernel, or will not have one by itself
    const starting = (session) => !session.isDisposed && !session.session?.kernel && session.kernelDisplayStatus === "initializing";
    const notify = (message) => app.commands.execute("apputils:notify", { message, type: "error", options: { autoClose: false } });

    async function ready(session) {
      for (let since = Date.now(); starting(session); await pause(50)) {
        // It waits for somebody to choose a kernel, or for nothing.
        if (session.hasNoKernel && Date.now() - since > undecided) return;
        if (!session.hasNoKernel) since = Date.now();
      }
      if (!session.isDisposed && !session.session?.kernel) {
        notify(`The kernel of ${session.name} has not started. The cells that waited for it have not run.`);
        return false;
      }
      return true;
    }

    // The cells that wait for a session go on in the order in which they were run.
    async function waited({ cell, sessionContext: session, onCellExecuted }) {
      if (!session || cell.model.type !== "code" || !cell.model.sharedModel.getSource().trim()) return true;
      if (!waiting.has(session)) {
        if (!back && !starting(session)) return true;
        // While the lab is away, nobody knows whether there still is a kernel.
        const known = Promise.resolve(back).then(() => !starting(session) || ready(session));
        waiting.set(session, known.finally(() => waiting.delete(session)));
      }
      const { model } = cell;
      model.executionState = "running";
      const there = await waiting.get(session);
      if (cell.isDisposed) return false;
      if (there === false) {
        model.executionState = "idle";
        onCellExecuted({ cell, success: false });
      }
      return there !== false;
    }

    const most = Number(PageConfig.getOption("gpulabLargestMessage")) || Infinity;
    const room = 1 << 20; // bytes of a message beside the source

    function fits({ cell, onCellExecuted }) {
      if (cell.model.type !== "code") return true;
      const source = cell.model.sharedModel.getSource();
      if (source.length * 4 + room < most) return true;
      const size = new TextEncoder().encode(JSON.stringify(source)).length;
      if (size + room < most) return true;
      const large = (bytes) => `${Math.floor(bytes / (1 << 20))} MiB`;
      notify(`This cell is too large to be run: it has ${large(size)}, and ${large(most)} are possible. Put the data into a file, and read that.`);
      onCellExecuted({ cell, success: false });
      return false;
    }

    const asked = async (options) => {
      try {
        return (await waited(options)) && fits(options);
      } catch (error) {
        console.error("gpulab:runs does not work for this cell:", error);
        return true;
      }
    };
    return Object.freeze({ runCell: async (options) => (await asked(options)) && runCell(options) });
  }

  // outputs: what cells print while no page is there is written into the notebook
  // by the server (gpulab_outputs.py). This is the page's side of it: a notebook is
  // saved when a cell is run, so that the file has the cell before the page can
  // vanish, and a page that comes back gets what it has missed, and what still comes.

  const soon = 2000; // ms until the server is asked again for a run that goes on
  const later = 30_000; // ms, for a run that another page follows
  const between = 5000; // ms between two saves because of a run, at least
  const patience = 30_000; // ms that a save waits for what the server has written, at most

  // JupyterLab lets saves of one notebook overlap, and the later then takes what the
  // earlier wrote for somebody else's change: it asks which version is right. Here one
  // begins when the one before has ended, and asks that come meanwhile are one.
  // JupyterLab also takes for saved what is typed while a save goes on, and its command
  // does nothing meanwhile: here the notebook is still to be saved, or is, if asked.
  // A page that was cut off first takes over what the server has written meanwhile.
  const orderly = new WeakMap(); // contexts whose saves wait for each other → what their command does besides

  function inTurn(context, behind, caughtUp) {
    if (orderly.has(context)) return;
    const save = context.save.bind(context);
    let now, next; // the save that goes on, and the one behind it
    let changed = false; // since a save began
    context.model.contentChanged.connect(() => (changed = true));
    context.saveState.connect((_, state) => {
      if (state === "completed" && changed) context.model.dirty = true;
    });
    const attempt = async () => {
      for (;;) {
        await back;
        await caughtUp();
        changed = false;
        const { path } = context;
        const before = behind();
        ordered.set(path, () => !before && behind());
        try {
          const done = await save();
          sent.delete(path);
          return done;
        } catch (error) {
          if (!error?.away) throw error;
        } finally {
          ordered.delete(path);
        }
      }
    };
    context.save = () => {
      if (next) return next;
      const begin = () => {
        next = undefined;
        now = attempt().finally(() => (now = undefined));
        return now;
      };
      if (!now) return begin();
      next = now.then(begin, (error) => {
        if (error?.name !== "ModalCancelError") return begin();
        next = undefined; // somebody does not want it saved; they are not asked again
        throw error;
      });
      return next;
    };
    orderly.set(context, () => {
      if (changed && !next && context.contentsModel?.writable) context.save().catch(() => {}); // JupyterLab says why
    });
  }

  // The cell of a run: its ID may be another one in another page, or in the file. Then it
  // is the cell with the same source, of several the one at the same place among them.
  function cellOf(cells, run, id, source) {
    const same = cells.filter((cell) => source(cell) === run.source);
    const [place, count] = run.place ?? [0, 1];
    return cells.find((cell) => id(cell) === run.cell) ?? (same.length === count ? same[place] : undefined);
  }

  class Follower {
    constructor(app, panel, request) {
      Object.assign(this, { app, panel, request, context: panel.context });
      inTurn(panel.context, () => this.behind, async () => {
        await this.caughtUp();
        await this.arrived();
        await this.tell();
      });
      this.shown = new Set(); // runs that this page has shown to their ends, and has not told the server yet
      this.since = 0; // the server's revision that this page has seen
      this.cut = new Set(); // runs of this page during which it was cut off
      this.taken = new Set(); // runs whose outputs this page gets from the server only
      this.lost = this.connected = this.asking = false;
      this.behind = false; // was cut off, and may not have what the server has written since
      this.last = null; // when the server itself last wrote the file, if nobody has since
      this.saved = 0;
      const session = this.context.sessionContext;
      const asks = () => this.placed(session.session?.kernel);
      session.kernelChanged.connect(asks);
      asks();
      session.connectionStatusChanged.connect((_, status) => {
        if (status === "connected") {
          if (this.lost) this.askIn(soon); // the server first sends what it held back
          else this.askIn(0);
          this.connected = true;
        } else if (this.connected) {
          this.lost = this.behind = true;
        }
      });
      session.iopubMessage.connect((_, message) => {
        const parent = message.parent_header;
        if (message.header.msg_type === "status" && parent.msg_type === "execute_request" && parent.session !== this.me()) this.askIn(500);
      });
      panel.disposed.connect(() => {
        clearTimeout(this.timer);
        this.behind = false;
      });
      this.context.ready.then(() => session.ready).then(() => {
        this.connected = true;
        this.askIn(0);
      });
    }

    code() {
      return [...this.context.model.cells].filter((cell) => cell.type === "code");
    }

    // Has a kernel's requests say which cell it is, where its ID does not last.
    placed(kernel) {
      if (!kernel || this.kernel === kernel) return;
      this.kernel = kernel;
      const request = kernel.requestExecute.bind(kernel);
      kernel.requestExecute = (content, dispose, metadata) => {
        const same = metadata?.cellId ? this.code().filter((cell) => cell.sharedModel.getSource() === content.code) : [];
        const place = same.findIndex((cell) => cell.id === metadata.cellId);
        const run = request(content, dispose, place < 0 ? metadata : { ...metadata, gpulabPlace: [place, same.length] });
        if (metadata?.cellId) run.done.then(() => this.shown.add(run.msg.header.msg_id)).catch(() => {}); // it was dropped
        return run;
      };
    }

    // Tells the server, before a save, which runs this page has shown to their ends: what it
    // then has of them is what its owner wants. The server keeps the others.
    async tell() {
      if (this.lost || this.behind) return; // some of their outputs may be missing here
      const shown = [...this.shown].filter((run) => !this.cut.has(run));
      if (!shown.length) return;
      try {
        await this.request("gpulab/outputs", { method: "POST", body: JSON.stringify({ shown }) });
        shown.forEach((run) => this.shown.delete(run));
      } catch {
        // The save that comes now says why.
      }
    }

    me() {
      return this.context.sessionContext.session?.kernel?.clientId;
    }

    // One question at a time, at the earliest time that was asked for.
    askIn(wait) {
      const at = Date.now() + wait;
      if (this.timer && this.at <= at) return;
      clearTimeout(this.timer);
      this.at = at;
      this.timer = setTimeout(async () => {
        this.timer = undefined;
        if (this.asking) return this.askIn(500);
        this.asking = true;
        try {
          await this.ask();
        } catch {
          this.askIn(later); // JupyterLab itself says that it is cut off
        }
        this.asking = false;
      }, wait);
    }

    // What this page may not have; again says that it will ask for the same once more.
    async missed(again = false) {
      const answer = await this.request(`gpulab/outputs?path=${encodeURIComponent(this.context.localPath)}&since=${this.since}${again ? "&again=1" : ""}`);
      this.last = answer.last;
      return answer;
    }

    async ask() {
      if (this.panel.isDisposed || !this.context.isReady || this.context.model.collaborative) return;
      const answer = await this.missed();
      const mine = (run) => run.session === this.me() && !this.taken.has(run.run);
      if (this.lost) {
        this.lost = false;
        answer.runs.filter(mine).forEach((run) => this.cut.add(run.run));
      }
      const runs = answer.runs.filter((run) => (mine(run) ? this.cut.has(run.run) : !run.there || this.taken.has(run.run)));
      const merged = runs.some((run) => run.written) && (await this.catchUp(answer, runs));
      this.behind = this.lost;
      let again = answer.runs.some((run) => !mine(run)) ? later : 0;
      let ended = merged;
      for (const run of runs) {
        if (!run.ended) again = soon;
        // A page's own run goes on here by itself; at its end gaps are filled.
        if (mine(run) && !run.ended) continue;
        if (run.outputs && this.show(run)) ended ||= run.ended;
        if (run.ended) this.cut.delete(run.run);
      }
      this.since = answer.revision;
      if (ended) await this.save();
      if (again) this.askIn(again);
    }

    // Waits until a page that was cut off has what the server has written, if there is a
    // kernel to connect to. By itself JupyterLab tries that after up to a minute; here it
    // has ever more time for it, too. If that takes too long or there is no kernel any more,
    // the page takes what the server has without connecting.
    async caughtUp() {
      await proofs.get(this.context.sessionContext.session?.kernel)?.();
      const ends = Date.now() + patience;
      for (let step = 1000, next = Date.now() + step; this.behind && Date.now() < ends; await pause(100)) {
        const kernel = this.context.sessionContext.session?.kernel;
        if (!kernel || kernel.status === "dead") break;
        if (kernel.connectionStatus === "connected" || Date.now() < next) continue;
        kernel.reconnect().catch(() => {});
        next = Date.now() + (step *= 2);
      }
      if (!this.behind || !this.context.isReady || this.context.model.collaborative) return;
      try {
        // Once more when the kernel is connected: then comes what the server held back of
        // what it said, too.
        const answer = await this.missed(true);
        await this.catchUp(answer, answer.runs);
        for (const run of answer.runs) if (run.ended && run.outputs) this.show(run);
      } catch {
        // The save that comes now says why.
      }
    }

    // A save that was cut off may have arrived. Then what is in the file is this page's,
    // or what the server has written into that, and JupyterLab need not ask which version
    // is right.
    async arrived() {
      const { path } = this.context;
      if (!sent.has(path)) return;
      const plain = (value) => {
        if (Array.isArray(value)) return value.every((part) => typeof part === "string") ? value.join("") : value.map(plain);
        if (!value || typeof value !== "object") return value;
        return Object.fromEntries(Object.entries(value).sort().map(([name, part]) => [name, plain(part)]));
      };
      const written = (notebook) => JSON.stringify((notebook?.cells ?? []).map((cell) => plain([cell.id, cell.source])));
      const printed = (notebook) => JSON.stringify((notebook?.cells ?? []).map((cell) => plain([cell.execution_count ?? null, cell.outputs ?? null])));
      try {
        // A lab that is just back may be away again: without this JupyterLab would ask.
        const file = await read(path, { type: "notebook", format: "json", content: true, hash: true });
        const mine = sent.get(path);
        const ours = written(file.content) === written(mine) && (printed(file.content) === printed(mine) || same(file.last_modified, this.last));
        if (ours) this.context._updateContentsModel?.(file);
        sent.delete(path);
      } catch {
        // The save that comes now says why.
      }
    }

    // Takes over what the server has written into the file since this page read it;
    // reports whether this page is to be saved because of that.
    async catchUp(answer, runs) {
      const contents = this.app.serviceManager.contents;
      const have = this.context.contentsModel;
      const disk = await read(this.context.path, { content: false, hash: true });
      if (disk.hash && have.hash ? disk.hash === have.hash : disk.last_modified === have.last_modified) return false;
      const file = await contents.get(this.context.path, { type: "notebook", format: "json", content: true, hash: true });
      // Nothing is waited for from here on: what somebody types stays.
      if (!this.context.model.dirty) {
        this.context.model.fromJSON(file.content);
        this.context._updateContentsModel?.(file);
        this.context.model.dirty = false;
        answer.runs.forEach((run) => this.taken.add(run.run)); // its cells are new ones
        return false;
      }
      // Nobody else has changed it, or else JupyterLab asks the person when it saves.
      if (!same(have.last_modified, answer.before) || !same(disk.last_modified, answer.last)) return false;
      if (file.hash !== disk.hash) return false;
      for (const run of runs.filter((run) => run.written)) {
        const code = file.content.cells.filter((cell) => cell.cell_type === "code");
        const cell = cellOf(code, run, (cell) => cell.id, (cell) => cell.source);
        if (cell) this.show({ ...run, outputs: cell.outputs, count: cell.execution_count });
      }
      this.context._updateContentsModel?.(file);
      return true;
    }

    // Shows what a run has printed below its cell; reports whether anything changed.
    show(run) {
      const cell = cellOf(this.code(), run, (cell) => cell.id, (cell) => cell.sharedModel.getSource());
      if (!cell || !run.begun) return false;
      const old = cell.outputs.toJSON();
      const changed = JSON.stringify(old) !== JSON.stringify(run.outputs) || cell.executionCount !== run.count;
      if (changed) {
        cell.trusted = true; // its owner ran it
        if (run.outputs.length < old.length) {
          cell.outputs.fromJSON(run.outputs);
        } else {
          run.outputs.forEach((output, i) => {
            if (i >= old.length) cell.outputs.add(output);
            else if (JSON.stringify(output) !== JSON.stringify(old[i])) cell.outputs.set(i, output);
          });
        }
        cell.executionCount = run.count;
      }
      cell.executionState = run.ended ? "idle" : "running";
      if (run.ended) this.shown.add(run.run);
      return changed;
    }

    // Saves the notebook because a cell is run, soon.
    begun() {
      if (this.saving) return;
      this.saving = setTimeout(() => {
        this.saving = undefined;
        this.saved = Date.now();
        this.save();
      }, Math.max(0, this.saved + between - Date.now()));
    }

    async save() {
      const { model, contentsModel } = this.context;
      if (this.panel.isDisposed || !model.dirty || model.collaborative || !contentsModel?.writable) return;
      await this.context.save().catch(() => {}); // JupyterLab says why
    }
  }

  function outputs(app, tracker, { NotebookActions }, { ServerConnection }) {
    const settings = app.serviceManager.serverSettings;
    const request = async (path, options = {}) => {
      const answer = await ServerConnection.makeRequest(settings.baseUrl + path, { cache: "no-store", ...options }, settings);
      if (!answer.ok) throw new ServerConnection.ResponseError(answer);
      return answer.status === 204 ? undefined : answer.json();
    };
    const followers = new Map(); // notebook → its follower
    const follow = (panel) => {
      if (followers.has(panel.content)) return;
      followers.set(panel.content, new Follower(app, panel, request));
      panel.disposed.connect(() => followers.delete(panel.content));
    };
    tracker.forEach(follow);
    tracker.widgetAdded.connect((_, panel) => follow(panel));
    app.commands.commandExecuted.connect((_, { id }) => {
      if (id === "docmanager:save") orderly.get(app.shell.currentWidget?.context)?.();
    });
    NotebookActions.executionScheduled.connect((_, { notebook }) => followers.get(notebook)?.begun());
  }

  // pdf: the export menu's way to a PDF. The image has no TeX; a browser prints what the
  // export to HTML gives into a file.

  const pdf = "gpulab:print-pdf";

  function printed(app, tracker, palette) {
    const current = () => (tracker.currentWidget === app.shell.currentWidget ? tracker.currentWidget : null);
    app.commands.addCommand(pdf, {
      label: "PDF (print to a file)…",
      caption: "Print this notebook with the browser, and choose a PDF file as the printer",
      isEnabled: () => Boolean(current()?.context.isReady),
      execute: () => app.commands.execute("apputils:print"),
    });
    tracker.currentChanged.connect(() => app.commands.notifyCommandChanged(pdf));
    app.shell.currentChanged?.connect(() => app.commands.notifyCommandChanged(pdf));
    palette?.addItem({ command: pdf, category: "Notebook Operations" });
  }

  // jobs: the menu's way to gpulab's page of jobs, with the form for the notebook
  // that is open.

  const runAsJob = "gpulab:run-as-job";

  function jobs(app, tracker, palette) {
    const current = () => (tracker.currentWidget === app.shell.currentWidget ? tracker.currentWidget : null);
    app.commands.addCommand(runAsJob, {
      label: "Run as Job…",
      caption: "Run this notebook from top to bottom as a job, without a browser",
      isEnabled: () => Boolean(current()?.context.isReady),
      execute: async () => {
        const { context } = current();
        if (context.model.dirty && context.contentsModel?.writable) await context.save();
        const kernel = context.model.getMetadata("kernelspec")?.name ?? "";
        const page = `/gpulab/job?${new URLSearchParams({ notebook: context.localPath, kernel })}`;
        if (!window.open(page, "_blank")) window.location.assign(page); // pop-ups are forbidden
      },
    });
    tracker.currentChanged.connect(() => app.commands.notifyCommandChanged(runAsJob));
    app.shell.currentChanged?.connect(() => app.commands.notifyCommandChanged(runAsJob));
    palette?.addItem({ command: runAsJob, category: "Notebook Operations" });
  }

  // addresses: a program that a cell or a terminal starts may print an address that only this
  // notebook reaches. A notice says how to open it in a browser.

  const newService = "gpulab:new-service";
  const local = /https?:\/\/(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1?\]):(\d{2,5})\b/g;
  const tensorboard = /tensorboard-frame[\s\S]*?const port = (\d{2,5})/g; // what %tensorboard shows

  function addresses(app, notebooks, terminals) {
    const told = new Set();
    const look = (text, pattern) => {
      for (const [, port] of text.matchAll(pattern)) {
        if (told.has(port)) continue;
        told.add(port);
        const message = `Only programs in this notebook can reach port ${port}. To open the program in a browser, start it as a service of the lab.`;
        const actions = [{ label: "New Service", commandId: newService, args: { port }, displayType: "accent" }];
        app.commands.execute("apputils:notify", { message, type: "info", options: { autoClose: 60_000, actions } });
      }
    };
    app.commands.addCommand(newService, {
      label: "Start a service of the lab",
      execute: ({ port }) => void window.open(`/gpulab/service?${new URLSearchParams({ port })}`, "_blank"),
    });
    const heard = (_, { header, content }) => {
      if (header.msg_type === "stream") look(content.text, local);
      if (header.msg_type === "display_data") look([content.data["text/html"] ?? ""].flat().join(""), tensorboard);
    };
    const followNotebook = ({ sessionContext }) => sessionContext.iopubMessage.connect(heard);
    notebooks.forEach(followNotebook);
    notebooks.widgetAdded.connect((_, panel) => followNotebook(panel));
    const followTerminal = ({ content: { session } }) =>
      session.messageReceived.connect((_, { type, content }) => type === "stdout" && look(String(content?.[0] ?? ""), local));
    terminals?.forEach(followTerminal);
    terminals?.widgetAdded.connect((_, panel) => followTerminal(panel));
  }

  // meter: what the notebook uses of its memory and its GPUs, in the status bar (gpulab_meter.py).

  const measured = 5000; // ms between two readings
  const scarce = 0.9; // share of the memory from which the figure is red

  // As gpulab's pages write it: one decimal below 100, unless it would be a zero.
  const gib = (bytes) => {
    const value = bytes / 2 ** 30;
    return value >= 99.95 ? value.toFixed(0) : value.toFixed(1).replace(".0", "");
  };
  const amount = (used, all) => (all ? `${gib(used)} of ${gib(all)} GiB` : `${gib(used)} GiB`);

  function memoryFigures({ used, limit }) {
    const nearly = limit > 0 && used >= scarce * limit;
    const about = [`Memory that the programs of this notebook use: ${amount(used, limit)}`];
    if (nearly) {
      about.push("When the memory is full, Linux kills programs of this notebook. Data in their memory is lost.");
    }
    return { text: `Memory ${amount(used, limit)}`, about, nearly };
  }

  function gpuFigures(gpus) {
    const words = (busy, used, total) => {
      const parts = [];
      if (busy !== null) parts.push(`${Math.round(busy)} %`);
      if (used !== null && total !== null) parts.push(amount(used, total));
      return parts.join(", ");
    };
    // GPUs that lack a figure are left out of it.
    const sum = (key, of) => (of.length ? of.reduce((all, gpu) => all + gpu[key], 0) : null);
    const working = gpus.filter((gpu) => gpu.busy !== null);
    const sized = gpus.filter((gpu) => gpu.used !== null && gpu.total !== null);
    const busy = working.length ? sum("busy", working) / working.length : null;
    const together = words(busy, sum("used", sized), sum("total", sized));
    const about = gpus.map(({ index, name, busy, used, total }) => {
      const figures = words(busy, used, total) || "unknown";
      return `GPU ${index}, ${name ?? "unknown model"}: ${figures}`;
    });
    about.push("These figures are for the whole GPU, including the programs of everyone who shares it.");
    return together && { text: `${gpus.length > 1 ? `${gpus.length} GPUs` : "GPU"} ${together}`, about };
  }

  function meter(app, bar, { Widget }, { ServerConnection }) {
    const settings = app.serviceManager.serverSettings;
    const item = new Widget();
    item.addClass("gpulab-meter");
    item.node.style.cssText = "display:flex;gap:1em";
    bar.registerStatusItem("gpulab:meter", { item, align: "right", rank: 1000 });
    const show = (figures) => {
      item.node.replaceChildren(
        ...figures.map(({ text, about, nearly }) => {
          const span = document.createElement("span");
          span.className = "jp-StatusBar-TextItem";
          Object.assign(span, { innerText: text, title: about.join("\n") });
          if (nearly) span.style.cssText = "color:var(--jp-error-color1);font-weight:600";
          return span;
        }),
      );
    };
    let asking = false;
    const look = async () => {
      if (document.visibilityState !== "visible" || !item.isVisible) return;
      if (back) show([]); // old figures would look like current ones
      if (back || asking) return;
      asking = true;
      try {
        const place = `${settings.baseUrl}gpulab/meter`;
        const answer = await ServerConnection.makeRequest(
          place,
          { cache: "no-store", signal: AbortSignal.timeout(2 * measured) },
          settings,
        );
        const { memory, gpus } = answer.ok ? await answer.json() : {};
        show([memory && memoryFigures(memory), gpus?.length && gpuFigures(gpus)].filter(Boolean));
      } catch {
        show([]); // JupyterLab itself says that it is cut off
      }
      asking = false;
    };
    app.restored.then(() => {
      look();
      setInterval(look, measured);
      document.addEventListener("visibilitychange", look);
    });
  }

  // archive: the list of files downloads a folder as one file (gpulab_archive.py).

  const downloadFolder = "gpulab:download-folder";

  function archive(app, browsers) {
    const folders = () => [...(browsers.tracker.currentWidget?.selectedItems() ?? [])].filter((item) => item.type === "directory");
    app.commands.addCommand(downloadFolder, {
      label: "Download as an Archive",
      caption: "Download the folder as a ZIP file",
      isVisible: () => folders().length > 0,
      execute: async () => {
        for (const { path, name } of folders()) {
          const link = document.createElement("a");
          const place = path.split("/").map(encodeURIComponent).join("/");
          Object.assign(link, { href: `${app.serviceManager.serverSettings.baseUrl}gpulab/archive/${place}`, download: `${name}.zip` });
          document.body.append(link);
          link.click();
          link.remove();
          await pause(500); // a browser takes one download at a time
        }
      },
    });
  }

  // trash: after files were deleted, a notice offers to put them back; the menu File empties
  // the trash (gpulab_trash.py).

  const undo = "gpulab:undo-delete";
  const emptyTrash = "gpulab:empty-trash";
  const together = 500; // ms in which files are deleted that one notice names

  function trash(app, { ServerConnection }, { showDialog, Dialog }, palette) {
    const { contents, serverSettings: settings } = app.serviceManager;
    const ask = async (method, body) => {
      const request = { method, cache: "no-store", body: body && JSON.stringify(body) };
      const answer = await ServerConnection.makeRequest(`${settings.baseUrl}gpulab/trash`, request, settings);
      if (!answer.ok) throw await ServerConnection.ResponseError.create(answer);
      return answer.status === 204 ? undefined : answer.json();
    };
    const notify = (message, type, options) => app.commands.execute("apputils:notify", { message, type, options });
    const failed = (error) => notify(error.message, "error", { autoClose: false });
    const files = (count) => (count === 1 ? "1 file or folder" : `${count} files or folders`);

    let deleted = [];
    let timer;
    const remove = contents.delete.bind(contents);
    contents.delete = async (path) => {
      await remove(path);
      if (contents.driveName(path)) return;
      deleted.push(path);
      clearTimeout(timer);
      timer = setTimeout(async () => {
        const paths = deleted.splice(0);
        // Some may be deleted for good, where there is no room for them or no trash.
        const { look: there } = await ask("POST", { look: paths }).catch(() => ({ look: paths }));
        const what = (some) => (some.length === 1 ? `“${some[0].split("/").pop()}” is` : `${files(some.length)} are`);
        const gone = paths.filter((path) => !there.includes(path));
        if (gone.length) notify(`${what(gone)} deleted for good: there is no trash at that place, or no room in it.`, "info", { autoClose: 10_000 });
        if (!there.length) return;
        const action = { label: "Undo", commandId: undo, args: { paths: there }, displayType: "accent" };
        notify(`${what(there)} in the trash.`, "info", { autoClose: 10_000, actions: [action] });
      }, together);
    };

    app.commands.addCommand(undo, {
      label: "Restore deleted files",
      execute: ({ paths }) =>
        ask("POST", { restore: paths })
          .catch(failed)
          .then(() => app.commands.execute("filebrowser:refresh")),
    });
    app.commands.addCommand(emptyTrash, {
      label: "Empty Trash…",
      caption: "Permanently delete everything in the trash",
      execute: async () => {
        try {
          const { count } = await ask("GET");
          if (!count) return void (await notify("The trash is empty.", "info", { autoClose: 5000 }));
          const choice = await showDialog({
            title: "Empty the trash?",
            body: `${files(count)} will be deleted for good.`,
            buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: "Empty Trash" })],
          });
          if (!choice.button.accept) return;
          const { count: gone } = await ask("DELETE");
          await notify(`${files(gone)} deleted for good.`, "success", { autoClose: 5000 });
        } catch (error) {
          failed(error);
        }
      },
    });
    palette?.addItem({ command: emptyTrash, category: "File Operations" });
  }

  let shared; // JupyterLab's own modules, by name and version

  async function load(name) {
    const [version] = Object.values(shared[name]);
    return (await version.get())();
  }

  // A part that fails leaves the others and JupyterLab as they are: instead is what a part
  // that provides something then provides.
  function part(id, activate, plugin, instead) {
    const guarded = async (...args) => {
      try {
        return await activate(...args);
      } catch (error) {
        console.error(`gpulab:${id} does not work in this page:`, error);
        return instead;
      }
    };
    return { id: `gpulab:${id}`, autoStart: true, ...plugin, activate: guarded };
  }

  async function plugins() {
    const [application, notebook, services, apputils, coreutils, filebrowser, terminal] = await Promise.all(
      ["application", "notebook", "services", "apputils", "coreutils", "filebrowser", "terminal"].map((name) => load(`@jupyterlab/${name}`)),
    );
    // Without a status bar there is no meter; the other parts still work.
    const [statusbar, widgets] = await Promise.all(
      ["@jupyterlab/statusbar", "@lumino/widgets"].map((name) => load(name).catch(() => undefined)),
    );
    const ofNotebooks = { requires: [notebook.INotebookTracker], optional: [apputils.ICommandPalette] };
    return [
      part("notices", notices, { description: "Shows gpulab's notices." }),
      part(
        "connection",
        (app) => connection(app, services),
        { description: "Says when the lab does not answer, and lets saves wait for it.", provides: application.IConnectionLost },
        application.ConnectionLost,
      ),
      part("home", (app) => home(app, services), { description: "Says what of the home is not used." }),
      part(
        "runs",
        (app) => runs(app, notebook, coreutils),
        { description: "Runs cells once the kernel has started.", provides: notebook.INotebookCellExecutor },
        Object.freeze({ runCell: notebook.runCell }),
      ),
      part("outputs", (app, tracker) => outputs(app, tracker, notebook, services), {
        description: "Keeps what cells print while no browser is there.",
        requires: [notebook.INotebookTracker],
      }),
      part("pdf", printed, { description: "Prints a notebook as the way to a PDF.", ...ofNotebooks }),
      part("jobs", jobs, { description: "Runs a notebook as a job of gpulab.", ...ofNotebooks }),
      part("addresses", addresses, {
        description: "Says how to open what a program in the notebook serves.",
        requires: [notebook.INotebookTracker],
        optional: [terminal.ITerminalTracker],
      }),
      part("archive", archive, { description: "Downloads a folder as one file.", requires: [filebrowser.IFileBrowserFactory] }),
      part("meter", (app, bar) => bar && meter(app, bar, widgets, services), {
        description: "Shows what the notebook uses of its memory and its GPUs.",
        optional: statusbar ? [statusbar.IStatusBar] : [],
      }),
      part("trash", (app, palette) => trash(app, services, apputils, palette), {
        description: "Offers to put back what was deleted.",
        optional: [apputils.ICommandPalette],
      }),
    ];
  }

  window._JUPYTERLAB ??= {};
  window._JUPYTERLAB.gpulab = {
    init: async (scope) => {
      shared = scope;
    },
    get: async () => {
      const all = await plugins();
      return () => ({ __esModule: true, default: all });
    },
  };
})();
