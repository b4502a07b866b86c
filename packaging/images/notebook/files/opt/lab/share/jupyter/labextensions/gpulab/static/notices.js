// Shows what gpulab has to tell the person in front of JupyterLab, such as that
// the memory of a GPU they share is nearly full. It is a federated extension
// written by hand: the object that JupyterLab asks for a module, and the one
// module. See https://jupyterlab.readthedocs.io/en/stable/extension/extension_dev.html
(() => {
  "use strict";

  const every = 10_000; // ms

  function activate(app) {
    const shown = new Map(); // key of a notice → ID of its notification

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
      for (const [key, id] of shown) {
        if (notices.some((notice) => notice.key === key)) continue;
        shown.delete(key);
        app.commands.execute("apputils:dismiss-notification", { id });
      }
      for (const { key, text } of notices) {
        const args = { message: text, type: "warning", options: { autoClose: false } };
        // One that the person has closed is not shown again.
        if (shown.has(key)) app.commands.execute("apputils:update-notification", { id: shown.get(key), ...args });
        else shown.set(key, await app.commands.execute("apputils:notify", args));
      }
    }

    app.restored.then(() => {
      look();
      setInterval(look, every);
    });
  }

  const plugin = { id: "gpulab:notices", description: "Shows gpulab's notices.", autoStart: true, activate };
  window._JUPYTERLAB ??= {};
  window._JUPYTERLAB.gpulab = { init: async () => {}, get: async () => () => ({ __esModule: true, default: plugin }) };
})();
