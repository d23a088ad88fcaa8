// The server's data, once or as a stream.

const indicator = document.getElementById('live');

function show(state, text) {
  indicator.dataset.state = state;
  if (indicator.textContent !== text) indicator.textContent = text;
}

// get requests JSON once. Without a login it leads to the login page.
export async function get(path, parameters) {
  const query = new URLSearchParams(Object.entries(parameters ?? {}).filter(([, v]) => v !== '' && v !== undefined));
  const answer = await fetch('/api/v1/' + path + (query.size ? '?' + query : ''));
  if (answer.status === 401) {
    location.assign('/login?next=' + encodeURIComponent(location.pathname + location.search));
    return new Promise(() => {}); // the page ends here
  }
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error ?? 'the server answered ' + answer.status);
  return value;
}

// polling requests JSON again and again, at intervals in milliseconds, while the page is shown. The
// last request alone counts: load begins one at once, for update to know that somebody asked.
export function polling(path, parameters, interval, update, trouble) {
  let timer;
  let round = 0;
  async function load(asked) {
    const mine = ++round;
    clearTimeout(timer);
    try {
      const data = await get(path, parameters);
      if (mine !== round) return;
      update(data, asked);
    } catch (error) {
      if (mine === round) trouble(error);
    }
    if (mine === round && !document.hidden) timer = setTimeout(load, interval);
  }
  const shown = () => { if (!document.hidden) load(); };
  document.addEventListener('visibilitychange', shown);
  load();
  return {
    load,
    close() {
      round++;
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', shown);
    },
  };
}

let paused = false;
let current = null;

// Live is a stream of one view. It pauses while the page is hidden, and
// reconnects by itself.
export class Live {
  constructor(parameters, update, trouble) {
    this.parameters = parameters;
    this.update = update;
    this.trouble = trouble;
    current?.close();
    current = this;
    this.open(true); // one update, even while paused: the page is new
  }

  // change requests another view of the same page.
  change(parameters) {
    this.parameters = parameters;
    this.stop();
    this.open(true);
  }

  open(once) {
    if (document.hidden || (paused && !once)) return;
    show('connecting', 'connecting');
    const source = new EventSource('/api/v1/live?' + new URLSearchParams(this.parameters));
    this.source = source;
    source.onmessage = (event) => {
      if (this.source !== source) return;
      const began = performance.now();
      const data = JSON.parse(event.data);
      this.update(data);
      record(began, data.head);
      show('live', 'live');
      if (paused) {
        this.stop();
        show('paused', 'paused');
      }
    };
    source.addEventListener('trouble', (event) => {
      this.trouble?.(new Error(JSON.parse(event.data).error));
      this.stop();
    });
    source.onerror = () => {
      if (this.source !== source) return;
      show('lost', 'no connection');
      if (source.readyState === EventSource.CLOSED) this.ask();
    };
  }

  // ask determines why a stream was refused, and tries again.
  async ask() {
    this.stop();
    const retry = () => { if (current === this && !this.source) this.open(); };
    try {
      await get('overview');
      show('lost', 'no live updates'); // every place may be taken
      this.timer = setTimeout(retry, 5000);
    } catch (error) {
      show('lost', 'no connection');
      this.timer = setTimeout(retry, 2000);
    }
  }

  stop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  close() {
    this.stop();
    if (current === this) current = null;
  }
}

// record stores the cost of an update and its age.
function record(began, head) {
  const detail = head && { sequence: head.sequence, ageMilliseconds: Date.now() - Date.parse(head.at) };
  performance.measure('update', { start: began, end: performance.now(), detail });
  if (performance.getEntriesByName('update').length > 300) performance.clearMeasures('update');
}

document.addEventListener('visibilitychange', () => {
  if (document.hidden) current?.stop();
  else if (current && !current.source) current.open();
});

const button = document.getElementById('pause');
button.addEventListener('click', () => {
  paused = !paused;
  button.setAttribute('aria-pressed', String(paused));
  button.textContent = paused ? 'Go on' : 'Pause';
  if (paused) {
    current?.stop();
    show('paused', 'paused');
  } else {
    current?.open();
  }
});
