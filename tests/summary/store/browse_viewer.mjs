// Uses viewer.html as a reader would: node browse_viewer.mjs VIEWER.html SCREENSHOT.png. Prints what was seen, as JSON.
import { pathToFileURL } from "node:url";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const [, , file, screenshot] = process.argv;
const browser = await puppeteer.launch({ args: chromium.args, executablePath: await chromium.executablePath(), headless: "shell" });
try {
  const page = await browser.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("request", (request) => request.url().startsWith("file:") || request.url().startsWith("data:") || errors.push(request.url()));
  await page.setViewport({ width: 1280, height: 800 });
  await page.goto(pathToFileURL(file).href);
  const texts = (selector) => page.$$eval(selector, (found) => found.map((e) => e.firstChild.textContent));
  const seen = { title: await page.title(), sequences: (await texts("#sequences button")).length, positions: (await texts("#positions button")).length };
  await page.hover('#positions button[data-position="3"]');
  seen.hovered = await texts("#distribution td.token");
  await page.screenshot({ path: screenshot });
  await page.select("#order", "sure");
  seen.sorted = await texts("#sequences button");
  await page.click("#sequences button:nth-child(2)");
  seen.clicked = (await texts("#title"))[0];
  await page.focus('#positions button[data-position="0"]');
  await page.keyboard.press("ArrowRight");
  seen.keyed = (await texts("#position"))[0];
  seen.errors = errors;
  console.log(JSON.stringify(seen));
} finally {
  await browser.close();
}
