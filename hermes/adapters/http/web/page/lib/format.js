// Numbers and times as people read them. Times are seconds since 1970, as in the API.

// The texts of the page are English, so dates are, too: in the variant of the reader.
const locale = navigator.languages.find((each) => each.startsWith("en")) ?? "en-GB";
const clock = new Intl.DateTimeFormat(locale, { hour: "numeric", minute: "2-digit" });
const exact = new Intl.DateTimeFormat(locale, { dateStyle: "full", timeStyle: "medium" });
const short = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short" });
const long = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short", year: "numeric" });
const weekday = new Intl.DateTimeFormat(locale, { weekday: "long" });
const month = new Intl.DateTimeFormat(locale, { month: "long", year: "numeric" });
const ago = new Intl.RelativeTimeFormat(locale, { numeric: "auto", style: "short" });
const compact = new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat(locale);
const DAY = 86400;

const date = (seconds) => new Date(seconds * 1000);
const midnight = (value) => new Date(value).setHours(0, 0, 0, 0);
const daysAgo = (seconds) => Math.round((midnight(Date.now()) - midnight(seconds * 1000)) / 864e5);

/** "14:05" */
export const time = (seconds) => clock.format(date(seconds));

/** "Wednesday, 18 November 2026 at 14:05:12", for tooltips. */
export const dateTime = (seconds) => exact.format(date(seconds));

/** "Today", "Yesterday", a weekday, or a date. */
export function day(seconds) {
  const days = daysAgo(seconds);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days < 7 ? weekday.format(date(seconds)) : shortDate(seconds);
}

/** The heading under which a list by date shows this: a day, "Last 30 days", or a month. */
export function period(seconds) {
  const days = daysAgo(seconds);
  if (days < 7) return day(seconds);
  return days < 30 ? "Last 30 days" : month.format(date(seconds));
}

/** "18 Nov", with the year if it is another one. */
export const shortDate = (seconds) => (date(seconds).getFullYear() === new Date().getFullYear()
  ? short : long).format(date(seconds));

/** The time if it is today, else the date. */
export const when = (seconds) => (daysAgo(seconds) <= 0 ? time(seconds) : shortDate(seconds));

/** "5 min. ago" */
export function relative(seconds, now = Date.now() / 1000) {
  const past = seconds - now;
  for (const [unit, size] of [["day", DAY], ["hour", 3600], ["minute", 60]]) {
    if (Math.abs(past) >= size) return ago.format(Math.round(past / size), unit);
  }
  return Math.abs(past) < 10 ? "just now" : ago.format(Math.round(past), "second");
}

/** "340 ms", "4.2 s", "3 min 20 s", "2 h 5 min", "3 d 4 h" */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const rest = Math.round(seconds);
  if (rest < 60) return `${rest} s`;
  const [name, size, minor, part] = rest < 3600 ? ["min", 60, "s", 1]
    : rest < DAY ? ["h", 3600, "min", 60] : ["d", DAY, "h", 3600];
  const left = Math.floor((rest % size) / part);
  return `${Math.floor(rest / size)} ${name}${left ? ` ${left} ${minor}` : ""}`;
}

/** "4:09", for what is counted down. */
export function countdown(seconds) {
  const left = Math.max(0, Math.ceil(seconds));
  return `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
}

/** "1.4 MB" */
export function bytes(size) {
  if (size < 1000) return `${size} B`;
  const power = Math.min(4, Math.floor(Math.log10(size) / 3));
  const value = size / 1000 ** power;
  return `${value.toFixed(value < 10 ? 1 : 0)} ${["", "kB", "MB", "GB", "TB"][power]}`;
}

/** "12,408" */
export const count = (value) => whole.format(value);

/** "12.4K" */
export const shortCount = (value) => compact.format(value);

/** "1 message", "2 messages" */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** "38%" */
export const percent = (share) => `${Math.round(share * 100)}%`;

/** "$0.0042": costs are in dollars, and often small. */
export function money(value) {
  if (!value) return "$0";
  if (value < 0.0001) return "<$0.0001";
  return `$${value < 0.01 ? value.toFixed(4) : value < 1 ? value.toFixed(3) : value.toFixed(2)}`;
}
