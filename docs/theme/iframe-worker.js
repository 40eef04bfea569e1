// SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
// SPDX-License-Identifier: Apache-2.0
// The search of a site that is opened from a disk. Browsers start no workers from there, so the worker's script runs in a
// hidden frame instead, which has the page's own origin.
if (location.protocol === "file:") {
  class FrameWorker extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}))
      this.ready = new Promise((resolve, reject) => {
        const script = inner.document.createElement("script")
        script.src = new URL(url, location.href).href
        script.onload = () => resolve(inner)
        script.onerror = () => reject(new Error(`${script.src} must be a script; it could not be read.`))
        inner.document.body.append(script)
      })
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new inner.MessageEvent("message", {data})))
    }

    terminate() {}
  }
  window.Worker = window.IFrameWorker = FrameWorker
}
