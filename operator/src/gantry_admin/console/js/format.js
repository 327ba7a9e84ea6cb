// Formats of numbers and times. `null` means "unknown" and is shown as a dash.

export const UNKNOWN = "–";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** 1284114 -> "1,284,114". */
export const count = (value) => (isKnown(value) ? whole.format(value) : UNKNOWN);

/** 12345 -> "12.3k": three significant digits. */
export function short(value) {
  if (!isKnown(value)) return UNKNOWN;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size * 0.9995) return `${digits(value / size)}${unit}`;
  }
  return Number.isInteger(value) ? String(value) : digits(value);
}

const digits = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2));

/** 1340000 -> "1.28 MiB". */
export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  let unit = 0;
  let left = Math.abs(value);
  while (left >= 1000 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${value < 0 ? "−" : ""}${unit === 0 ? left.toFixed(0) : digits(left)} ${UNITS[unit]}`;
}

/** Format seconds as "320 ms", "4.2 s", "3 min", "2 h 05 min". */
export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return "< 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) {
    const minutes = Math.round(seconds / 60);
    return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  }
  return `${Math.floor(seconds / 86400)} days`;
}

/** Format milliseconds with three significant digits: "0.26 ms", "16.4 ms". */
export const millis = (value) => (isKnown(value) ? (value >= 1000 ? duration(value / 1000) : `${digits(value)} ms`) : UNKNOWN);

/** Format a time as "14:03:21" today, and with its date on any other day. */
export function moment(wallMs) {
  if (!isKnown(wallMs) || wallMs <= 0) return UNKNOWN;
  const then = new Date(wallMs);
  const time = then.toLocaleTimeString("en-GB");
  return then.toDateString() === new Date().toDateString() ? time : `${isoDay(then)} ${time}`;
}

/** Format a time with all digits: "2026-11-22 14:03:21.042". */
export function exactly(wallMs) {
  if (!isKnown(wallMs) || wallMs <= 0) return UNKNOWN;
  const then = new Date(wallMs);
  return `${isoDay(then)} ${then.toLocaleTimeString("en-GB")}.${String(then.getMilliseconds()).padStart(3, "0")}`;
}

/** Format a time in UTC: "2026-11-22 13:03:21.042 UTC". */
export const utc = (wallMs) => (isKnown(wallMs) && wallMs > 0 ? `${new Date(wallMs).toISOString().replace("T", " ").replace("Z", "")} UTC` : UNKNOWN);

/** Return the name of the reader's time zone, such as "Europe/Berlin". */
export const zoneName = () => Intl.DateTimeFormat().resolvedOptions().timeZone ?? "local time";

const isoDay = (then) =>
  `${then.getFullYear()}-${String(then.getMonth() + 1).padStart(2, "0")}-${String(then.getDate()).padStart(2, "0")}`;

/** "3 brokers", "1 broker". */
export const plural = (number, noun, nouns = `${noun}s`) => `${count(number)} ${number === 1 ? noun : nouns}`;

// Characters that move, hide or reverse the text beside them are shown as their codes.
const UNPRINTABLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Return untrusted text with all invisible characters shown as their codes. */
export const plain = (text) =>
  String(text).replace(UNPRINTABLE, (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

/** Return the hex of a text in UTF-8. */
export const hexOf = (text) => Array.from(new TextEncoder().encode(text), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Format hex as a dump: "68 65 6c 6c" and the printable characters, 16 bytes per line. */
export function hexDump(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const pairs = hex.slice(at, at + 32).match(/../g) ?? [];
    const text = pairs.map((pair) => {
      const code = Number.parseInt(pair, 16);
      return code >= 0x20 && code < 0x7f ? String.fromCharCode(code) : "·";
    });
    lines.push(`${(at / 2).toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(47)}  ${text.join("")}`);
  }
  return lines.join("\n");
}
