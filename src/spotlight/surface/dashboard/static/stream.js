// Updates of one run. An event's id is a position in the journal: the browser sends the last one when it connects
// again, so that nothing is missing. An update that does not continue at our position makes us ask again from there.

const RETRY_MS = 2000;
const HIDDEN_MS = 60000;

export class RunStream {
  constructor(run, seq, onUpdate, onState) {
    this.run = run;
    this.seq = seq;
    this.onUpdate = onUpdate;
    this.onState = onState;
    this.source = null;
    this.timer = 0;
    this.open();
    // Browsers allow few connections to one server, so a page in the background gives its own back.
    document.addEventListener("visibilitychange", () => {
      clearTimeout(this.hiding);
      if (document.hidden) this.hiding = setTimeout(() => this.close("paused"), HIDDEN_MS);
      else if (!this.source) this.open();
    });
    addEventListener("pagehide", () => this.close("paused"));
    addEventListener("pageshow", () => { if (!this.source) this.open(); });
  }

  open() {
    clearTimeout(this.timer);
    this.source?.close();
    const source = this.source = new EventSource(`/runs/${this.run}/events?after=${this.seq}`);
    source.addEventListener("open", () => this.onState("live"));
    source.addEventListener("update", (event) => this.receive(JSON.parse(event.data)));
    source.addEventListener("reset", () => location.reload());
    source.addEventListener("error", () => {
      this.onState("reconnecting");
      if (source.readyState === EventSource.CLOSED && source === this.source) {
        this.timer = setTimeout(() => this.open(), RETRY_MS);
      }
    });
  }

  close(state) {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.onState(state);
  }

  receive(update) {
    if (update.from !== this.seq) {
      this.open();
      return;
    }
    this.seq = update.seq;
    this.onUpdate(update);
  }
}
