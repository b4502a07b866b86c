// Shows what gpulab has to tell the person in front of JupyterLab, such as that
// the memory of a GPU they share is nearly full, or that a notebook which nobody
// uses is about to be stopped: with a countdown, and a button that keeps it. It is
// a federated extension written by hand: the object that JupyterLab asks for a
// module, and the one module.
// See https://jupyterlab.readthedocs.io/en/stable/extension/extension_dev.html
(() => {
  "use strict";

  const every = 10_000; // ms
  const keep = "gpulab:keep-notebook";

  const left = (seconds) => `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;

  function activate(app) {
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
        const answer = await fetch("/gpulab/notices", { headers: { Accept: "application/json" }, cache: "no-store" });
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

  const plugin = { id: "gpulab:notices", description: "Shows gpulab's notices.", autoStart: true, activate };
  window._JUPYTERLAB ??= {};
  window._JUPYTERLAB.gpulab = { init: async () => {}, get: async () => () => ({ __esModule: true, default: plugin }) };
})();
