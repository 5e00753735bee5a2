// What a person looks at, in the address's fragment: a reload or a shared address shows the same.

export class Place {
  constructor() {
    this.values = new URLSearchParams(location.hash.slice(1));
  }

  get(name) { return this.values.get(name); }

  set(name, value) {
    if (value === null) this.values.delete(name);
    else this.values.set(name, value);
    const text = this.values.toString();
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  }
}
