// Browsers start no worker for a page that lies on a disk, and the site's search is one. There a hidden
// frame takes its place: what is said to the worker is heard in the frame, and the other way round.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    #inside = null
    #unheard = []

    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = url
      script.onload = () => {
        this.#inside = inside
        for (const data of this.#unheard) this.postMessage(data)
      }
      script.onerror = () => this.dispatchEvent(new ErrorEvent("error", { message: `${url} is not there` }))
      inside.document.body.append(script)
    }

    postMessage(data) {
      if (this.#inside) this.#inside.dispatchEvent(new MessageEvent("message", { data }))
      else this.#unheard.push(data)
    }
  }
  window.Worker = window.IFrameWorker
}
