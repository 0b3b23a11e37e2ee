// Opens pages of reports in headless Chromium, in light and in dark, and fails on a console message,
// on an error, and on a request that leaves the file.
//
//   node report_page.mjs PAGE.html...
//
// CHROMIUM names the browser (default: chromium), PUPPETEER_FOLDER the folder in which
// `npm install puppeteer-core` ran (default: this one), PAGE_SHOTS a folder for screenshots. The exit
// code is 3, after a sentence, where the browser or puppeteer-core is missing.
import { execFileSync } from 'node:child_process'
import { createRequire } from 'node:module'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

// Limit of each step in milliseconds: on a loaded machine the browser needs minutes to start.
const PATIENCE = 600_000

const missing = (what) => {
  console.log(`The page was not opened, for want of ${what}.`)
  process.exit(3)
}
const folder = path.resolve(process.env.PUPPETEER_FOLDER ?? '.')
let puppeteer, browserPath
try {
  const loaded = await import(createRequire(`${folder}/x.js`).resolve('puppeteer-core'))
  puppeteer = loaded.default ?? loaded
} catch {
  missing('puppeteer-core')
}
try {
  browserPath = execFileSync('which', [process.env.CHROMIUM ?? 'chromium'], { encoding: 'utf8' }).trim()
} catch {
  missing('Chromium')
}

const findings = []
const browser = await puppeteer.launch({
  executablePath: browserPath,
  args: ['--no-sandbox'],
  timeout: PATIENCE,
  protocolTimeout: PATIENCE,
})
for (const file of process.argv.slice(2)) {
  for (const scheme of ['light', 'dark']) {
    const page = await browser.newPage()
    page.setDefaultTimeout(PATIENCE)
    const address = pathToFileURL(file).href
    const found = (what) => findings.push(`${path.basename(file)}, ${scheme}: ${what}`)
    page.on('console', (message) => found(`console: ${message.text()}`))
    page.on('pageerror', (error) => found(`error: ${error.message}`))
    page.on('dialog', (dialog) => {
      found(`dialog: ${dialog.message()}`)
      dialog.dismiss()
    })
    page.on('request', (request) => {
      const url = request.url()
      if (url !== address && !url.startsWith('data:')) found(`request: ${url}`)
    })
    await page.setViewport({ width: 1240, height: 900 })
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }])
    await page.goto(address, { waitUntil: 'networkidle0' })
    const seen = await page.evaluate(() => ({
      wide: document.documentElement.scrollWidth > window.innerWidth,
      background: getComputedStyle(document.body).backgroundColor,
      charts: document.querySelectorAll('svg').length,
    }))
    if (seen.wide) found('the page is wider than the window')
    if (seen.charts === 0) found('no chart')
    const bright = Number(seen.background.match(/\d+/)[0]) > 128
    if (bright !== (scheme === 'light')) found(`background ${seen.background}`)
    if (process.env.PAGE_SHOTS) {
      const shot = path.join(process.env.PAGE_SHOTS, `${path.basename(file, '.html')}-${scheme}.png`)
      await page.screenshot({ path: shot, fullPage: true })
    }
    await page.close()
  }
}
await browser.close()
findings.forEach((finding) => console.log(finding))
process.exit(findings.length > 0 ? 1 : 0)
