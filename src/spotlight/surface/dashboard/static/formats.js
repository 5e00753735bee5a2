// Numbers on axes and in tooltips; everything else on the page is written by the server.

export function clock(seconds) {
  const whole = Math.round(seconds);
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  const rest = String(whole % 60).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

export function exactClock(seconds, span) {
  if (span > 30) return clock(seconds);
  const digits = span > 3 ? 1 : 2;
  return `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(digits).padStart(3 + digits, "0")}`;
}

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  const hours = Math.round(seconds / 3600);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function number(value, unit) {
  if (value === null || value === undefined) return "–";
  switch (unit) {
    case "share": return `${(100 * value).toFixed(value !== 0 && Math.abs(value) < 0.0995 ? 1 : 0)} %`;
    case "count": return Math.round(value).toLocaleString("en");
    case "score": return value.toFixed(2);
    default: return String(Number(value.toPrecision(3)));
  }
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
