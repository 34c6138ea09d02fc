"""How a card looks: screen in light and dark, and one A4 page in print."""

STYLE = """
:root {
  --page: #ffffff; --text: #1b1f24; --soft: #59636e; --line: #d5dbe1; --head: #f4f6f8;
  --pass: #1a7f4b; --flag: #a63b00; --open: #59636e; --flagged: #fff3e8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15181c; --text: #e4e8ec; --soft: #9aa5b1; --line: #343b43; --head: #1d2126;
    --pass: #57c48b; --flag: #ffa057; --open: #9aa5b1; --flagged: #2c2118;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 14px/1.4 system-ui, sans-serif; }
main {
  max-width: 1180px; margin: 0 auto; padding: 24px 20px;
  display: grid; grid-template-columns: 1fr 1fr; gap: 4px 28px;
}
header, footer, .wide { grid-column: 1 / -1; min-width: 0; }
.half { min-width: 0; }
h1 { font-size: 1.7em; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1em; margin: 1em 0 .35em; padding-bottom: .15em; border-bottom: 1px solid var(--line); }
h3 { font-size: 1em; margin: .8em 0 .3em; }
p { margin: .3em 0; }
.question { font-size: 1.1em; color: var(--soft); }
.verdict { font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92em; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .22em .7em .22em 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
table.contenders th:last-child { min-width: 15em; }
table.numbers td:not(:last-child) { white-space: nowrap; }
td { overflow-wrap: break-word; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2em .9em; margin: 0; }
dt { color: var(--soft); max-width: 9em; }
dd { margin: 0; overflow-wrap: anywhere; }
ol, ul { margin: .2em 0; padding-left: 1.4em; }
li { margin: .15em 0; overflow-wrap: anywhere; }
.checks { columns: 2; column-gap: 28px; }
.check { break-inside: avoid; padding: .3em .5em; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
.check b { float: right; margin-left: .8em; text-transform: uppercase; font-size: .78em; letter-spacing: .04em; }
.check h3 { display: inline; margin: 0; }
.check .rule { display: block; color: var(--soft); font-size: .86em; }
.pass b { color: var(--pass); }
.flag b { color: var(--flag); }
.open b { color: var(--open); }
.flag { background: var(--flagged); }
footer { margin-top: 1em; color: var(--soft); font-size: .86em; }
@media screen and (max-width: 760px) {
  main { display: block; }
  .checks { columns: 1; }
  dl { display: block; }
  dd { margin: 0 0 .4em; }
}
@media print {
  @page { size: A4; margin: 7mm 8mm; }
  :root {
    --page: #ffffff; --text: #000000; --soft: #444444; --line: #cccccc; --head: #ffffff;
    --pass: #14663c; --flag: #a63b00; --open: #444444; --flagged: #fff3e8;
  }
  body { font-size: var(--print-size); line-height: 1.2; }
  main { max-width: none; padding: 0; gap: 0 10px; }
  h1 { font-size: 1.5em; }
  h2 { margin: .35em 0 .1em; }
  h3 { margin: .3em 0 .1em; }
  p { margin: .1em 0; }
  th, td { padding: .06em .6em .06em 0; }
  .scroll { overflow: visible; }
  .checks { columns: 3; column-gap: 10px; }
  .check .rule { display: inline; }
  .check .rule::before { content: "· "; }
  .check { padding: .1em .3em; }
  ol, ul { margin: .1em 0; }
  li { margin: .04em 0; }
  .limits ul { columns: 2; column-gap: 20px; }
  footer { margin-top: .3em; }
  .flag { print-color-adjust: exact; }
}
"""
