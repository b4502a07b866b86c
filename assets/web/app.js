// Small behaviours of gpulab's pages. Everything here is an extra: without
// script every page still works through links and forms. It runs before htmx
// starts, so that it hears everything htmx says.
(() => {
  "use strict";

  const root = document.documentElement;
  const body = document.body;

  // ---- whose session is this? Cookies know no ports, so a page at another port of this host can set the session's
  // cookie in some browsers. It cannot read or write what this origin keeps: a key that goes along with every form,
  // and that a session carries from the sign-in on.
  const keyName = "gpulab-browser-key";
  function browserKey() {
    try {
      let key = localStorage.getItem(keyName);
      if (!/^[0-9a-f]{32}$/.test(key)) {
        key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
        localStorage.setItem(keyName, key);
      }
      return key;
    } catch {
      return ""; // a browser that keeps nothing
    }
  }
  const fillKey = (form) => {
    for (const field of form.querySelectorAll('input[name="browser-key"]')) field.value = browserKey();
  };
  const foreign = () => {
    const key = browserKey();
    return key !== "" && "sessionKey" in body.dataset && body.dataset.sessionKey !== key;
  };
  if (foreign()) {
    body.replaceChildren();
    location.replace("/other-session");
    return;
  }
  document.addEventListener("submit", (event) => fillKey(event.target), true);

  // A page that only passes on what it was opened with.
  const passing = document.querySelector("form[data-send]");
  if (passing) {
    fillKey(passing);
    passing.requestSubmit();
  }

  // ---- theme: as the system says, light or dark; the cookie lets the server
  // paint the first frame in the right colours.
  const themes = ["system", "light", "dark"];
  const themeNow = () => root.dataset.theme || "system";

  function showTheme(button) {
    const next = themes[(themes.indexOf(themeNow()) + 1) % themes.length];
    button.setAttribute("aria-label", `Colours: ${themeNow()}. Switch to ${next}.`);
    button.title = button.getAttribute("aria-label");
    for (const icon of button.querySelectorAll("[data-theme-icon]")) {
      icon.classList.toggle("hidden", icon.dataset.themeIcon !== themeNow());
    }
  }

  for (const button of document.querySelectorAll("[data-theme-button]")) {
    button.hidden = false;
    showTheme(button);
    button.addEventListener("click", () => {
      const next = themes[(themes.indexOf(themeNow()) + 1) % themes.length];
      if (next === "system") delete root.dataset.theme;
      else root.dataset.theme = next;
      document.cookie = `gpulab-theme=${next}; Path=/; Max-Age=31536000; SameSite=Lax; Secure`;
      showTheme(button);
    });
  }

  // ---- questions before something is stopped or removed, and no second
  // submission of the same form.
  const dialog = document.getElementById("confirm");
  let asked = null;

  document.addEventListener("submit", (event) => {
    const form = event.target;
    const question = form.dataset.confirm;
    if (question && dialog && asked !== form) {
      event.preventDefault();
      asked = null;
      dialog.querySelector("[data-question]").textContent = question;
      dialog.querySelector("[data-consequence]").textContent = form.dataset.consequence || "";
      const yes = dialog.querySelector("[data-yes]");
      yes.textContent = form.dataset.verb || "Yes";
      yes.onclick = () => {
        dialog.close();
        if (!form.isConnected) {
          // News has replaced this part of the page. A form that is in no page sends nothing.
          form.hidden = true;
          document.body.append(form);
        }
        asked = form;
        form.requestSubmit();
      };
      dialog.showModal();
      return;
    }
    asked = null;
    if (form.getAttribute("aria-busy") === "true") {
      event.preventDefault();
      return;
    }
    form.setAttribute("aria-busy", "true");
    event.submitter?.setAttribute("aria-busy", "true");
  });
  dialog?.querySelector("[data-no]")?.addEventListener("click", () => dialog.close());

  // A page that comes back from the browser's history must be usable again.
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    for (const busy of document.querySelectorAll("[aria-busy]")) busy.removeAttribute("aria-busy");
  });

  // ---- copy buttons
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const field = document.getElementById(button.dataset.copy);
      field.select();
      try {
        await navigator.clipboard.writeText(field.value);
        button.querySelector("[data-copy-label]").textContent = "Copied";
      } catch {
        // The text is selected; the person can copy it by hand.
      }
    });
  }

  // ---- pages made for paper
  for (const button of document.querySelectorAll("[data-print]")) {
    button.hidden = false;
    button.addEventListener("click", () => print());
  }

  // ---- a handle suggested from the name, until somebody edits it
  const plain = { ß: "ss", æ: "ae", œ: "oe", ø: "o", đ: "d", ł: "l", þ: "th", ð: "d", ı: "i" };
  const toHandle = (name) =>
    name
      .toLowerCase()
      .replace(/[ßæœøđłþðı]/g, (c) => plain[c])
      .normalize("NFD")
      .replace(/\p{M}/gu, "")
      .replace(/[^a-z0-9]+/g, "-")
      .replace(/^[^a-z]+/, "")
      .slice(0, 30)
      .replace(/-+$/, "");

  for (const handle of document.querySelectorAll("[data-suggest-from]")) {
    const name = document.getElementById(handle.dataset.suggestFrom);
    let own = handle.value !== "";
    handle.addEventListener("input", (event) => {
      if (event.isTrusted) own = handle.value !== "";
    });
    name?.addEventListener("input", () => {
      if (own) return;
      handle.value = toHandle(name.value);
      handle.dispatchEvent(new Event("input", { bubbles: true }));
    });
  }

  // ---- live parts: say so when they stop, and start them again
  const live = document.getElementById("live");
  const lost = document.getElementById("live-lost");
  let connection = null;
  let heard = Date.now(); // or tried to hear
  let seen = heard; // the last value

  const ago = (seconds) => (seconds < 100 ? `${seconds} s` : `${Math.round(seconds / 60)} min`);
  const setLost = (isLost) => {
    if (lost) {
      lost.hidden = !isLost;
      lost.querySelector("[data-since]").textContent = ` ${ago(Math.max(0, Math.round((Date.now() - seen) / 1000)))} ago`;
    }
    body.classList.toggle("stale", isLost);
  };

  // htmx connects again after a break, but not when the first try failed.
  const connect = () => {
    if (!connection) htmx.ajax("GET", live.getAttribute("hx-sse:connect"), { source: live, timeout: 10000 });
  };
  let left = 0; // when this page set out for another, in milliseconds
  addEventListener("beforeunload", () => {
    left = Date.now();
  });
  const refused = (status) => {
    // 401: signed out here or elsewhere; the page itself leads to sign-in. One that
    // signs out is on its way already, and would be called back.
    if (status !== 401) setLost(true);
    else if (Date.now() - left > 5000) location.reload();
  };

  if (live) {
    live.addEventListener("htmx:sse:after:connection", (event) => {
      connection = event.detail.connection;
      heard = seen = Date.now();
      setLost(false);
    });
    live.addEventListener("htmx:sse:before:message", () => {
      heard = seen = Date.now();
    });
    live.addEventListener("htmx:sse:error", (event) => refused(event.detail.status));
    for (const failed of ["htmx:response:error", "htmx:error"]) {
      live.addEventListener(failed, (event) => {
        refused(event.detail.ctx?.response?.status);
        setTimeout(connect, 3000);
      });
    }
    live.addEventListener("htmx:sse:close", () => {
      connection = null;
    });
    document.addEventListener("visibilitychange", () => {
      heard = Date.now();
    });
    // The server speaks at least every 15 seconds. Silence for 35 means that
    // the connection is gone, even if nobody closed it (a laptop that slept).
    setInterval(() => {
      if (document.hidden || Date.now() - heard < 35000) return;
      heard = Date.now();
      setLost(true);
      if (connection?.reader) connection.reader.cancel();
      else connect();
    }, 5000);
    setInterval(() => {
      if (lost && !lost.hidden) setLost(true);
    }, 1000);
  }

  // ---- can this browser hold the live connection that notebooks need?
  // Safari loads pages from a certificate it was told to accept, but refuses
  // WebSockets then; Firefox accepts a certificate per port.
  const hub = body.dataset.notebooks;
  const remembered = "gpulab-websocket-works";

  function webSocketWorks() {
    return new Promise((resolve) => {
      const socket = new WebSocket(`wss://${hub}/gpulab/ws-check`);
      const done = (works) => {
        clearTimeout(timer);
        resolve(works);
        socket.close();
      };
      const timer = setTimeout(() => done(false), 8000);
      socket.onopen = () => done(true);
      socket.onerror = () => done(false);
    });
  }

  async function pagesWork() {
    try {
      await fetch(`https://${hub}/gpulab/ping`, { mode: "no-cors", cache: "no-store" });
      return true;
    } catch {
      return false;
    }
  }

  async function notebooksWork() {
    if (!hub || sessionStorage.getItem(remembered)) return true;
    if (await webSocketWorks()) {
      sessionStorage.setItem(remembered, "1");
      return true;
    }
    const banner = document.getElementById((await pagesWork()) ? "ws-refused" : "hub-unreachable");
    if (banner) banner.hidden = false;
    return false;
  }
  const usable = notebooksWork();

  // ---- a notebook opens by itself, once, when it becomes ready before our eyes
  // or just did; not in a browser where its kernel would stay "connecting"
  // A log shows its end, and stays where somebody has scrolled to.
  let atEnd = true;
  const showEnd = () => {
    const log = document.querySelector("pre[data-follow]");
    if (log && atEnd) log.scrollTop = log.scrollHeight;
  };
  document.addEventListener("scroll", (event) => {
    const log = event.target;
    if (log.matches?.("pre[data-follow]")) atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  }, true);
  const logPlace = document.querySelector("#job-log")?.parentElement;
  if (logPlace) new MutationObserver(showEnd).observe(logPlace, { childList: true, subtree: true, characterData: true });
  showEnd();

  const ready = () => document.querySelector("[data-open-when-ready]");
  let awaited = !ready() || "justReady" in ready().dataset;

  async function openWhenReady() {
    const link = ready();
    if (!link || !awaited) return;
    awaited = false;
    if (!(await usable)) return;
    const key = `gpulab-opened-${link.dataset.openWhenReady}`;
    if (sessionStorage.getItem(key)) return;
    sessionStorage.setItem(key, "1");
    location.replace(link.href);
  }
  document.addEventListener("htmx:after:swap", openWhenReady);
  openWhenReady();
})();
