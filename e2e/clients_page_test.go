package e2e

// The page for people, in Chromium without its window: what a person sees, clicks and types.
// In each state axe-core looks for barriers, in one of the themes, or with SOAK in both; with
// SCREENSHOTS=DIR in the environment there is a picture of each, to look at.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"petstore/e2e/planted"
)

// tab is a browser's tab with the page in it.
type tab struct {
	t    *testing.T
	ctx  context.Context
	axe  string // the script
	host string // that of the page

	mu       sync.Mutex
	requests []*network.Request
	problems []string // what the browser's console says that should not be
}

// openTab starts a browser with a profile of its own and opens the address.
// When the test ends, nothing may have gone wrong unseen.
func openTab(t *testing.T, address string) *tab {
	t.Helper()
	program, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Fatal("install Chromium (Debian: chromium-headless-shell)")
	}
	axe, err := os.ReadFile(filepath.Join(nodeModules(t), "axe-core", "axe.min.js"))
	noError(t, err)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program),
		chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)

	b := &tab{t: t, ctx: ctx, axe: string(axe), host: strings.Split(address+"//", "/")[2]}
	noError(t, chromedp.Listen(ctx, b.listen))
	b.theme("light")
	b.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(address))
	// On a busy machine, Navigate may be back before the page's script has run.
	eventually(t, longEnough, func() error {
		state, err := evaluate[string](b, "document.readyState + location.href")
		if err == nil && !strings.HasPrefix(state, "complete"+address) {
			err = fmt.Errorf("the page is %s", state)
		}
		return err
	})
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, problem := range b.problems {
			t.Errorf("the browser complains: %s", problem)
		}
	})
	return b
}

// startPage starts a service with so many animals, and opens its page.
func startPage(t *testing.T, animals int) (s *server, b *tab) {
	t.Helper()
	s = start(t)
	s.stock(animals)
	return s, openTab(t, s.address()+"/")
}

// openWithoutScripts opens a page in a browser that runs no JavaScript.
func openWithoutScripts(t *testing.T, address string) *tab {
	t.Helper()
	b := openTab(t, "about:blank")
	b.host = strings.TrimPrefix(address, "http://")
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled,
		emulation.SetScriptExecutionDisabledParams{Value: true})
	noError(t, err)
	b.do(chromedp.Navigate(address + "/"))
	return b
}

// listen sees what happens in the tab. That an answer is no success is in the
// console too, from the source "network", and is nothing to complain of.
func (b *tab) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request)
		if u, err := url.Parse(e.Request.URL); err != nil || u.Host != "" && u.Host != b.host {
			b.problems = append(b.problems, "a request to "+e.Request.URL)
		}
	case *log.EventEntryAdded:
		if e.Entry.Source != "network" {
			b.problems = append(b.problems, fmt.Sprint(e.Entry.Source, ": ", e.Entry.Text))
		}
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, fmt.Sprint(e.ExceptionDetails.Text, " ",
			e.ExceptionDetails.Exception.Description))
	case *runtime.EventConsoleAPICalled:
		b.problems = append(b.problems, fmt.Sprint("console.", e.Type))
	}
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	noError(b.t, chromedp.Do(b.ctx, actions...))
}

func (b *tab) click(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// press presses keys, where the focus is.
func (b *tab) press(keys string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(keys))
}

// fill replaces what is in a field, as somebody who types.
func (b *tab) fill(selector, text string) {
	b.t.Helper()
	eval[string](b, fmt.Sprintf("document.querySelector(%q).value = ''", selector))
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// add adds a pet of category 1.
func (b *tab) add(name string) {
	b.t.Helper()
	b.fill("#name", name)
	b.fill("#categoryId", "1\r")
}

// useKey enters a key in the page for people.
func (b *tab) useKey(key string) {
	b.t.Helper()
	b.fill("#key", key+"\r")
}

// evaluate is the value of a JavaScript expression.
func evaluate[T any](b *tab, expression string) (T, error) {
	return chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// eval is the same where it must have one.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	value, err := evaluate[T](b, expression)
	if err != nil {
		b.t.Fatalf("%.200s: %v", expression, err)
	}
	return value
}

// wants compares the value of an expression.
func wants[T comparable](b *tab, expression string, want T) {
	b.t.Helper()
	if got := eval[T](b, expression); got != want {
		b.t.Errorf("%s is %v, and not %v", expression, got, want)
	}
}

// isEmpty wants an element to show nothing.
func (b *tab) isEmpty(selector string) {
	b.t.Helper()
	if got := b.text(selector); strings.TrimSpace(got) != "" {
		b.t.Errorf("%s shows %q", selector, got)
	}
}

// focus is an expression for the element that has it.
const focus = "document.activeElement.id"

// contentOf is an expression for the text of an element, tabs included, which innerText may lose.
func contentOf(selector string) string {
	return fmt.Sprintf("document.querySelector(%q).textContent", selector)
}

// text is what an element shows; of several that are to be seen, line by line.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return eval[string](b, textOf(selector))
}

// textOf is an expression for the text that elements show.
func textOf(selector string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(%q)]
		.filter((e) => e.checkVisibility())
		.map((e) => e.innerText)
		.join("\n")`, selector)
}

// shows waits until an element shows a text, whatever the case its style gives it. A page that is
// left for another one meanwhile answers with an error, and then the other one is asked.
func (b *tab) shows(selector, want string) {
	b.t.Helper()
	eventually(b.t, 20*time.Second, func() error {
		got, err := evaluate[string](b, textOf(selector))
		if err != nil {
			return fmt.Errorf("%s: %w", selector, err)
		}
		if !strings.Contains(strings.ToLower(got), strings.ToLower(want)) {
			return fmt.Errorf("%s shows %q, and not %q", selector, got, want)
		}
		return nil
	})
}

// sent counts the requests to the API.
func (b *tab) sent() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.requests {
		if strings.Contains(r.URL, "/v1/") {
			n++
		}
	}
	return n
}

// state checks how the page for people looks now, and leaves the window 1280 pixels wide.
func (b *tab) state(name string) {
	b.t.Helper()
	b.looks(name, faultsOfThePage, 320, 390, 1280)
}

// looks checks how a page looks at some widths: it has no barrier that axe-core knows of, and
// nothing of what a script finds wrong. 320 is 1280 at a zoom of 400 % (WCAG 2.2, 1.4.10).
func (b *tab) looks(name, faults string, widths ...int64) {
	b.t.Helper()
	for _, theme := range planted.Some(b.t.Name()+name, 1, []string{"light", "dark"}) {
		b.theme(theme)
		for _, width := range widths {
			b.do(chromedp.EmulateViewport(width, 900))
			what := fmt.Sprintf("%s-%s-%d", name, theme, width)
			for _, fault := range eval[[]string](b, faults) {
				b.t.Errorf("%s: %s", what, fault)
			}
			b.drawn()
			b.picture(what + ".png")
		}
		for _, barrier := range b.barriers() {
			b.t.Errorf("%s, %s: %s", name, theme, barrier)
		}
	}
}

// faultsOfThePage are: what is wider than the window; and, on a phone of 390 × 844 pixels, what a
// finger misses, or covers too much of its screen, or wastes it. Links within a sentence are as
// high as their line.
const faultsOfThePage = `(() => {
	const found = [...document.querySelectorAll("button, input, select")]
		.filter((e) => e.getBoundingClientRect().right > innerWidth)
		.map((e) => (e.id || e.textContent) + " is cut off");
	const width = document.documentElement.scrollWidth;
	if (width > innerWidth) found.push("the page is " + width + " pixels wide");
	return innerWidth === 390 ? found.concat(tooSmall(), empty()) : found;

	function tooSmall() {
		const height = (e) => e.getBoundingClientRect().height;
		const touched = "button, input, select, .operations a, .top a, a.tall";
		const small = [...document.querySelectorAll(touched)]
			.filter((e) => e.checkVisibility({visibilityProperty: true}) && height(e) < 44)
			.map((e) => (e.id || e.textContent) + " is " + height(e) + " pixels high");
		const bar = height(document.querySelector(".limits"));
		if (bar > 84) small.push("the bar is " + bar + " pixels high");
		const tops = [...document.querySelectorAll(".meter")]
			.map((e) => e.getBoundingClientRect().top);
		if (new Set(tops).size > 1) small.push("the gauges are at " + tops);
		if (document.getElementById("key").clientWidth < 250) {
			small.push("the field of the key is too narrow");
		}
		const links = [...document.querySelectorAll(".top nav a")];
		const rows = new Set(links.map((e) => e.getBoundingClientRect().top));
		if (rows.size > 1) small.push("the navigation has " + rows.size + " rows");
		for (const e of document.querySelectorAll(".answer")) {
			const {clientHeight} = e;
			if (clientHeight > 320) small.push("a response is " + clientHeight + " pixels high");
			const isFolded = getComputedStyle(e).whiteSpace !== "pre";
			if (isFolded && e.checkVisibility()) small.push("JSON is folded");
		}
		const all = (selector) => [...document.querySelectorAll(selector)];
		const tell = (elements, what) => elements.map((e) => e.textContent.trim() + what);
		small.push(
			...tell(all("#errors th").filter((e) => e.offsetHeight > 30),
				" is broken"),
			...tell(all(".gauge p").filter((e) => e.scrollWidth > e.clientWidth), " is too wide"),
			...tell(all("summary").filter((e) => getComputedStyle(e).display !== "list-item"),
				" has no mark that it opens"));
		return small;
	}

	// empty tells of places in which a reader sees nothing for 100 pixels.
	function empty() {
		const seen = [...document.querySelectorAll("button, input, select, pre, .meter")];
		const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
		while (texts.nextNode()) {
			const text = texts.currentNode;
			const element = text.parentElement; // of one pixel if it is for screen readers
			if (!text.data.trim() || element.closest("pre") || element.offsetHeight <= 1) continue;
			const range = document.createRange();
			range.selectNodeContents(text);
			if (element.checkVisibility()) seen.push(range);
		}
		const isSeen = (e) => !e.checkVisibility || e.checkVisibility();
		const boxes = seen.filter(isSeen).map((e) => e.getBoundingClientRect());
		let end = 0;
		const found = [];
		for (const {top, bottom} of boxes.sort((a, b) => a.top - b.top)) {
			if (top > end + 100) found.push("nothing is seen from " + end + " to " + top);
			end = Math.max(end, bottom);
		}
		return found;
	}
})()`

// barriers are the violations that axe-core finds.
func (b *tab) barriers() (found []string) {
	b.t.Helper()
	if !eval[bool](b, "'axe' in window") {
		b.do(chromedp.Evaluate[chromedp.Void](b.axe + ";undefined"))
	}
	result := eval[string](b, `axe.run({resultTypes: ["violations"]})
		.then((r) => JSON.stringify(r.violations))`)
	var violations []struct {
		ID, Help string
		Nodes    []struct{ HTML, FailureSummary string }
	}
	noError(b.t, json.Unmarshal([]byte(result), &violations))
	for _, v := range violations {
		for _, n := range v.Nodes {
			found = append(found, fmt.Sprintf("%s: %s\n%s\n%s", v.ID, v.Help, n.HTML,
				n.FailureSummary))
		}
	}
	return found
}

// picture takes a screenshot of the whole page, if somebody wants to see it.
func (b *tab) picture(file string) {
	b.t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, file), png, 0o600)
	}
	noError(b.t, err)
}

// theme makes the page light or dark, and still.
func (b *tab) theme(name string) {
	b.t.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name},
		{Name: "prefers-reduced-motion", Value: "reduce"}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		b.t.Fatal(err)
	}
}

// drawn waits until the page is drawn as it is now, from its top.
func (b *tab) drawn() {
	b.t.Helper()
	eval[bool](b,
		"new Promise((drawn) => { scrollTo(0, 0); requestAnimationFrame(() => "+
			"requestAnimationFrame(() => drawn(true))); })")
}

// TestThePicturesOfThePage makes the pictures of the README, in the folder that
// PICTURES names.
func TestThePicturesOfThePage(t *testing.T) {
	folder := os.Getenv("PICTURES")
	if folder == "" {
		t.Skip("PICTURES names no folder")
	}
	s := start(t)
	for i, name := range strings.Fields("Rex Tom Luna Milo Bella Coco Nala Balu Simba Lilly " +
		"Charly Kira Max Mia Paul Emma Oskar Frida") {
		status := []string{"available", "available", "pending", "available", "sold"}[i%5]
		s.addPet(fmt.Sprintf(`{"name":%q,"categoryId":%d,"status":%q}`, name, 1+i%4, status))
	}
	b := openTab(t, s.address()+"/")
	b.do(chromedp.EmulateViewport(1200, 900))
	b.useKey(s.newKey("-plan", "pro"))
	b.shows("#gauges", "299 of 300 left")
	b.click(`[data-limit="5"]`)
	b.shows("#gauges", "298 of 300 left")
	b.writePictures(filepath.Join(folder, "page-"), 1260)
}

// writePictures writes a page in both themes, at most so high.
func (b *tab) writePictures(prefix string, height int) {
	b.t.Helper()
	for _, theme := range []string{"light", "dark"} {
		b.theme(theme)
		b.drawn()
		shot, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		noError(b.t, err)
		writePicture(b.t, prefix+theme+".png", shot, height)
	}
}

// writePicture writes the upper left part of a PNG, at most so high, with the 256
// colours that it has most of, which makes it a quarter as large.
func writePicture(t *testing.T, file string, shot []byte, height int) {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(shot))
	noError(t, err)
	part := image.Rect(0, 0, 1200, height).Intersect(full.Bounds())
	pixels := map[color.Color]int{}
	for y := range part.Dy() {
		for x := range part.Dx() {
			pixels[full.At(x, y)]++
		}
	}
	colors := color.Palette(slices.SortedFunc(maps.Keys(pixels), func(a, b color.Color) int {
		return cmp.Or(pixels[b]-pixels[a], cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	}))
	picture := image.NewPaletted(part, colors[:min(len(colors), 256)])
	draw.Draw(picture, part, full, part.Min, draw.Src)
	var encoded bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	noError(t, encoder.Encode(&encoded, picture))
	t.Logf("%s: %d colours, %d bytes", file, len(pixels), encoded.Len())
	noError(t, os.WriteFile(file, encoded.Bytes(), 0o644))
}

// stock adds animals: of any three, one is available, one pending and one sold.
func (s *server) stock(n int) {
	s.t.Helper()
	for i := range n {
		status := []string{"available", "pending", "sold"}[i%3]
		s.addPet(fmt.Sprintf(`{"name":"Animal %d","categoryId":%d,"status":%q}`, i+1, i%7,
			status))
	}
}

// runs the sample that a section shows in the language that is chosen, where KEY
// is the key, and returns what it prints.
func (b *tab) runs(section, key string) string {
	b.t.Helper()
	sample := eval[string](b, code(section))
	// as a person does
	sample = regexp.MustCompile(`^export KEY=pet_live_…`).ReplaceAllString(sample,
		"export KEY="+key)
	return runSample(b.t, b.text(section+" [role=tab][aria-selected=true]"), sample, key)
}

// code is an expression for a section's sample.
func code(section string) string { return contentOf(section + " .code") }

// runSample runs a sample as somebody who has copied it, and who has put the key
// into KEY.
func runSample(t *testing.T, language, sample, key string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string) {
		noError(t, os.WriteFile(filepath.Join(dir, name), []byte(sample+"\n"), 0o600))
	}
	cmd := exec.Command("sh", "-c", sample)
	if language != "curl" {
		first, _, _ := strings.Cut(sample, "\n")
		words := strings.Fields(strings.TrimLeft(first, "#/ ")) // the first line says how to run it
		write(words[len(words)-1])
		cmd = exec.Command(words[0], words[1:]...)
	}
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KEY="+key)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", language, err, sample)
	}
	return string(out)
}

func TestThePageTakesAPersonThroughTheService(t *testing.T) {
	s := start(t)
	s.stock(45)
	key := s.newKey("-plan", "pro")
	b := openTab(t, s.address()+"/")
	b.shows("h1", "A pet store API")
	b.shows("#start-code", s.url+"/pets")
	b.shows(".start", "Get an API key")
	b.shows("#start-code", "export KEY=pet_live_")
	wants(b, `document.querySelector(".limits").checkVisibility()`, false)
	b.shows("#list .nothing", "Shown after your first request")
	b.shows("#status", "default (available)")
	b.state("start")
	if n := b.sent(); n != 0 {
		t.Errorf("the page has sent %d requests before it was asked to", n)
	}

	b.useKey(key)
	b.shows("#list .outcome", "Page 1: 20 pets, and there are more.")
	b.shows("#gauges", "299 of 300 left")
	b.shows("#gauges", "9,999 of 10,000 left")
	b.state("list")
	// a real one, and samples
	for _, body := range []string{"#list .body", "#add .body", ".sample"} {
		kinds := eval[int](b, fmt.Sprintf(`(() => {
			const colour = (more) => getComputedStyle(document.querySelector(%q + more)).color;
			return new Set(["", " .member", " .string", " .value"].map(colour)).size;
		})()`, body))
		if kinds != 4 {
			t.Errorf("the JSON of %s has %d colours", body, kinds)
		}
	}
	methods := `new Set([...document.querySelectorAll(".operations b")]
		.map((e) => getComputedStyle(e).color)).size`
	wants(b, methods, 3) // that of the deprecated operation is muted

	b.click(`[data-status="sold"]`)
	b.shows("#list .outcome", "15 sold pets.")
	if got := b.text("#list td:nth-child(4)"); strings.ReplaceAll(got, "sold\n", "") != "sold" {
		t.Errorf("the list of what is sold shows %q", got)
	}
	b.state("filtered")

	b.click(`[data-status=""]`)
	b.shows("#list .outcome", "Page 1: 20 pets, and")
	b.click("#next")
	b.shows("#list .outcome", "Page 2: 20 pets, and")
	b.shows("#list tbody tr:first-child", "Animal 21")
	if got := b.runs("#list", key); !strings.Contains(got, "HTTP/1.1 200 OK") ||
		!strings.Contains(got, `"name":"Animal 21"`) {
		t.Errorf("the curl line of the second page gets %s", got)
	}

	eval[bool](b,
		`(navigator.clipboard.writeText = async (text) => { window.copied = text; }, true)`)
	b.click("#list .copy")
	b.shows("#said", "Copied")
	wants(b, "copied", eval[string](b, code("#list")))
	b.click("#list .result .copy")
	b.shows("#list .result .copy", "Copied")
	wants(b, "copied", eval[string](b, contentOf("#list .answer")))
	b.click(".base .copy")
	b.shows(".base .copy", "Copied")
	wants(b, "copied", s.url)

	b.click("#fetch summary")
	b.fill("#petId", "7")
	b.click("#fetch [type=submit]")
	b.shows("#fetch .outcome", "Animal 7, category 6, available.")
	b.shows("#fetch .answer", "sunset: Thu, 05 Dec 2030 00:00:00 GMT")
	b.state("fetched")
	b.fill("#petId", "4700")
	b.click("#fetch [type=submit]")
	b.shows("#petId-error", "there is no pet with this id")
	b.state("not-found")

	b.keepsTheSecret(key)
	b.click("#forget")
	b.shows("#list .outcome", "Use a key")
	if got := eval[string](b,
		"document.getElementById('key').value + JSON.stringify(sessionStorage)"); strings.Contains(
		got, key) {
		t.Errorf("the key is still there after it was to be forgotten: %s", got)
	}
}

// keepsTheSecret checks that the key is in the tab's session storage and its
// field, and nowhere else.
func (b *tab) keepsTheSecret(key string) {
	b.t.Helper()
	wants(b, fmt.Sprintf("Object.values(sessionStorage).includes(%q)", key), true)
	if kept := eval[string](b,
		`JSON.stringify(Object.keys(localStorage)) + document.cookie`); kept != "[]" &&
		!strings.HasPrefix(kept, `["language http`) || strings.Contains(kept, ",") {
		b.t.Errorf("the page keeps %s beyond the tab", kept)
	}
	if strings.Contains(eval[string](b, "location.href + document.documentElement.outerHTML"),
		key) {
		b.t.Error("the key is in the address or in the text of the page")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.requests {
		if strings.Contains(r.URL, key) || fmt.Sprint(r.Headers["Authorization"]) == "Bearer "+
			key != strings.Contains(r.URL, "/v1/") {
			b.t.Errorf("%s %s with Authorization %v", r.Method, r.URL, r.Headers["Authorization"])
		}
	}
}

func TestThePageAddsAnAnimal(t *testing.T) {
	s := start(t)
	key := s.newKey("-plan", "free")
	b := openTab(t, s.address()+"/")
	b.useKey(key)
	b.shows("#list .outcome", "There are no pets.")
	b.state("empty")

	// 64 bits, of which a JavaScript number holds 53.
	b.fill("#name", "Rex")
	b.fill("#categoryId", "9007199254740993")
	b.click("#add [type=submit]")
	b.shows("#add .outcome", "Added Rex with the id 1.")
	b.shows("#list tbody", "9007199254740993")
	b.shows("#list .fresh", "new")
	b.shows("#added", "9007199254740993")
	b.state("added")
	page := b.text("#add .body")
	if got := b.runs("#add", key); !strings.Contains(got, "Idempotency-Replayed: true") ||
		!strings.HasSuffix(got, page) {
		t.Errorf("the curl line was answered\n%s\nbut the page's request\n%s", got, page)
	}

	b.fill("#name", "Rex") // another of the same name is another animal
	b.fill("#categoryId", "9007199254740993\r")
	b.shows("#add .outcome", "Added Rex with the id 2.")

	b.fill("#name", " ")
	b.fill("#categoryId", "1.5")
	b.click("#add [type=submit]")
	b.shows("#name-error", "must not be blank")
	b.shows("#categoryId-error",
		"must be an integer of at most 64 bits, without fraction or exponent")
	b.shows("#add .status", "400 Bad Request")
	wants(b, focus, "name")
	b.state("refused")

	b.fill("#name", "Tom")
	b.fill("#categoryId", "")
	b.press("\r")
	b.shows("#categoryId-error", "is required")
	wants(b, contentOf("#name-error"), "") // which was right
	b.fill("#categoryId", "-9223372036854775808\r")
	b.shows("#add .outcome", "Added Tom with the id 3.")
	b.shows("#list tbody", "-9223372036854775808")
}

func TestThePageWaitsWhenALimitIsSpent(t *testing.T) {
	t.Parallel()
	s, b := startPage(t, 3)
	b.useKey(s.newKey("-plan", "enterprise", "-per-minute", "3", "-per-day", "100"))
	for left := 2; left > 0; left-- {
		b.shows("#gauges", fmt.Sprintf("%d of 3 left", left))
		b.click(`[data-status="sold"]`)
	}
	b.shows("#gauges", "0 of 3 left")
	b.click(`[data-status="sold"]`)
	b.shows("#list .outcome", "the limit of 3 requests a minute is used up; retry in")
	b.state("spent")
	b.oneClock()

	const told = `document.querySelector("[role=meter]").ariaValueText`
	meter := eval[string](b, told)
	if !strings.HasPrefix(meter, "0 of 3 left, resets in ") {
		t.Errorf("the gauge of the minute tells a screen reader %q", meter)
	}
	eventually(t, 20*time.Second, func() error {
		if eval[string](b, told) == meter {
			return fmt.Errorf("the gauge stays at %q", meter)
		}
		return nil
	})

	// To insist would get the key banned.
	sent := b.sent()
	b.click(`[data-status="sold"]`)
	b.click("#add [type=submit]")
	b.do(chromedp.Reload())
	b.shows("#list .outcome", "Not sent: the service asked to wait; retry in")
	if n := b.sent() - sent; n != 0 {
		t.Errorf("the page has sent %d requests while it was to wait", n)
	}

	// Who asks for it asks the service, since the key may have got another limit meanwhile.
	s.command("key", "set", "-db", s.db, "-per-minute", "100", "2")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		b.do(chromedp.Focus(chromedp.CSS("#again")), chromedp.KeyEvent("\r"))
		if b.settled("#list .outcome") == "1 sold pet." {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the limit was raised the page shows %q", b.text("#list .outcome"))
		}
	}
	wants(b, "document.activeElement.className", "table") // since the button is gone
	b.useKey(s.key)                                       // has limits of its own
	b.shows("#list .outcome", "1 sold pet.")
}

// TestThePageSaysWhenABanEnds beside whatever button is pressed, and sends nothing until then.
func TestThePageSaysWhenABanEnds(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.stock(3)
	banned := s.newKey("-plan", "enterprise", "-per-minute", "1", "-per-day", "100")
	for s.ask(t, banned) != "429 key_banned" {
	}
	b := openTab(t, s.address()+"/")
	b.useKey(banned)
	b.shows("#key-error", "The key is banned for repeated requests after 429; retry in")
	b.shows("#key-error", " min ")
	b.state("banned")
	sent := b.sent()
	for button, message := range map[string]string{
		"#key-form [type=submit]": "#key-error", "#add [type=submit]": "#add .outcome",
		`[data-status="sold"]`: "#list .outcome",
	} {
		b.click(button)
		b.shows(message, " min ")
		wants(b, waits(button), true)
	}
	b.do(chromedp.Reload())
	b.shows("#key-error", "Not sent: the service asked to wait; retry in")
	b.shows("#key-error", " min ")
	b.state("still-banned")
	if n := b.sent() - sent; n != 0 {
		t.Errorf("the page has sent %d requests during the ban", n)
	}
	b.fill("#key", s.key) // another key need not wait
	wants(b, waits("#key-form [type=submit]"), false)
	b.click("#key-form [type=submit]")
	b.shows("#list .outcome", "Your key works. 3 pets.")
	b.isEmpty("#key-error")
}

// waits is an expression for whether a button does nothing now.
func waits(button string) string {
	return fmt.Sprintf(`document.querySelector(%q).ariaDisabled === "true"`, button)
}

// TestThePageShowsItsFirstResponseOnAPhone at once, also that of a new service.
func TestThePageShowsItsFirstResponseOnAPhone(t *testing.T) {
	t.Parallel()
	s, b := startPage(t, 0)
	b.do(chromedp.EmulateViewport(390, 844))
	b.useKey(s.key)
	inView := func(outcome string, selectors ...string) {
		t.Helper()
		b.shows("#key-note", "Your key works.")
		b.shows("#list .outcome", outcome)
		for _, selector := range selectors {
			wants(b, isInView(selector), true)
		}
	}
	inView("There are no pets.", "#list .outcome", "#list .nothing", "#list .status", "#list .body")
	s.stock(25)
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(s.address()+"/"))
	b.useKey(s.key)
	inView("Page 1: 20 pets", "#list .outcome", "#list tbody tr:nth-child(10)")
	wants(b, `(() => {
		const box = document.querySelector("#list .answer"); // in which the JSON scrolls
		return box.scrollWidth > box.clientWidth && box.scrollHeight > box.clientHeight;
	})()`, true)
}

// isInView is an expression for whether an element can be seen below the bar.
func isInView(selector string) string {
	return fmt.Sprintf(`(() => {
		const box = (selector) => document.querySelector(selector).getBoundingClientRect();
		const [part, bar] = [%q, ".limits"].map(box);
		return part.top >= bar.bottom && part.bottom <= innerHeight;
	})()`, selector)
}

// settled is what an element shows once no request is under way.
func (b *tab) settled(selector string) string {
	b.t.Helper()
	for eval[bool](b, `document.querySelector("[aria-busy=true]") !== null`) {
		time.Sleep(20 * time.Millisecond)
	}
	return b.text(selector)
}

// behind is the address of a proxy before the server, which lets requests pass as it likes.
func (s *server) behind(proxy func(w http.ResponseWriter, r *http.Request,
	pass http.Handler)) (address string) {
	s.t.Helper()
	service, err := url.Parse(s.address())
	noError(s.t, err)
	pass := httputil.NewSingleHostReverseProxy(service)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxy(w, r, pass)
	}))
	s.t.Cleanup(front.Close)
	return front.URL
}

func TestThePageGoesOnAfterAFault(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.stock(1)
	var busy, lossy atomic.Bool // the proxy answers for the service, or loses its answers
	b := openTab(t, s.behind(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		switch {
		case busy.Load():
			w.Header().Set("Retry-After", "3")
			http.Error(w, "<h1>busy</h1>", http.StatusServiceUnavailable)
		case lossy.Load():
			pass.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		default:
			pass.ServeHTTP(w, r)
		}
	})+"/")
	b.useKey(s.key)
	b.shows("#list .outcome", "1 pet.")

	busy.Store(true)
	b.click(`[data-status="pending"]`)
	b.shows("#list .outcome",
		"The response was 503 Service Unavailable, and not the service’s own.")
	b.agree("pending")
	wants(b, `[...document.querySelectorAll(".send")].every((e) => e.ariaDisabled === "true")`,
		true)
	busy.Store(false)
	b.shows("#said", "You can send again.")
	b.click("#again")
	b.shows("#list .outcome", "There are no pending pets.")
	b.click(`[data-status="available"]`)
	b.shows("#list .outcome", "1 available pet.")

	lossy.Store(true)
	b.add("Rex")
	b.shows("#add .outcome", "No response came")
	b.shows("#add .status", "No response")
	b.state("no-answer")
	lossy.Store(false)
	b.click("#add [type=submit]")
	b.shows("#add .outcome", "Added Rex with the id 2.")
	b.shows("#add .answer", "idempotency-replayed: true")
	b.shows("#list .outcome", "2 available pets.")

	// A body that is changed back goes with its first Idempotency-Key.
	lossy.Store(true)
	b.add("Max")
	b.shows("#add .outcome", "No response came")
	lossy.Store(false)
	b.fill("#name", "Tom")
	b.fill("#name", "Max")
	b.click("#add [type=submit]")
	b.shows("#add .outcome", "Added Max with the id 3.")
	b.shows("#add .answer", "idempotency-replayed: true")
	b.add("Max") // who adds another one, adds another one
	b.shows("#add .outcome", "Added Max with the id 4.")
}

// gate is a proxy before a service that holds requests back until it is opened.
type gate struct {
	mu    sync.Mutex
	match string // what a request that is held has in its method, path, query or key; or ""
	held  int
	open  chan struct{}
}

// startGate starts the proxy, and returns its address.
func startGate(s *server) (g *gate, address string) {
	g = &gate{}
	return g, s.behind(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if open := g.waits(r); open != nil {
			<-open
		}
		pass.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
	})
}

// waits returns what a request has to wait for, or nil.
func (g *gate) waits(r *http.Request) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	what := r.Method + " " + r.URL.RequestURI() + " " + r.Header.Get("Authorization")
	if g.match == "" || !strings.Contains(what, g.match) {
		return nil
	}
	g.held++
	return g.open
}

// hold holds back what matches.
func (g *gate) hold(match string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.match, g.held, g.open = match, 0, make(chan struct{})
}

// release lets go of what is held, once that is so many requests.
func (g *gate) release(t *testing.T, requests int) {
	t.Helper()
	eventually(t, longEnough, func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.held < requests {
			return fmt.Errorf("%d of %d requests are held", g.held, requests)
		}
		return nil
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.match = ""
	close(g.open)
}

// TestALateResponseHarmsNobody: that of an old key takes the new one away no more, and that of
// another place is not shown.
func TestALateResponseHarmsNobody(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.stock(25)
	g, address := startGate(s)
	b := openTab(t, address+"/")
	revoked := s.newKey("-plan", "free")
	b.useKey(revoked)
	b.shows("#gauges", "59 of 60 left")
	s.command("key", "revoke", "-db", s.db, "2")
	g.hold(revoked)
	b.add("Rex")
	b.shows("#add .outcome", "Adding Rex …")
	b.useKey(s.key)
	b.shows("#key-note", "Your key works.")
	g.release(t, 1)
	b.shows("#add .outcome", "The API key is not valid")
	b.shows("#gauges", "Minute")
	wants(b, fmt.Sprintf("Object.values(sessionStorage).includes(%q)", s.key), true)
	b.isEmpty("#key-error")
	b.state("late-key")

	b.click(`[data-limit="5"]`)
	b.shows("#list .outcome", "Page 1: 5 pets, and")
	b.click("#next")
	b.shows("#list .outcome", "Page 2: 5 pets, and")
	g.hold("/v1/pets?limit=5 ")
	b.back()
	b.shows("#list .outcome", "Loading …")
	b.back()
	b.shows("#list .outcome", "Page 1: 20 pets, and")
	g.release(t, 1)
	b.shows("#list .title", "Response")
	time.Sleep(300 * time.Millisecond) // in which what was held has come
	wants(b, `document.querySelectorAll("#list .body .string").length`, 40)
	wants(b, code("#list")+`.includes("limit")`, false)
}

// TestTheLastPressWins, each says that it loads, and a create runs once.
func TestTheLastPressWins(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.stock(25)
	g, address := startGate(s)
	b := openTab(t, address+"/")
	b.useKey(s.key)
	b.shows("#list .outcome", "Page 1: 20 pets")
	g.hold("GET /v1/pets")
	b.click(`[data-status="sold"]`)
	b.shows("#list .outcome", "Loading …")
	b.shows("#list .title", "Loading")
	b.state("loading")
	b.click(`[data-status="available"]`)
	b.click(`[data-limit="5"]`)
	g.release(t, 3)
	b.shows("#list .outcome", "Page 1: 5 available pets, and there are more.")
	b.agree("available")

	g.hold("POST ")
	b.add("Rex")
	b.shows("#add .outcome", "Adding Rex …")
	b.click("#add [type=submit]")
	b.shows("#add .outcome", "Still adding Rex …")
	b.fill("#name", "Tom")
	g.release(t, 1)
	b.shows("#add .outcome", "Added Rex with the id 26.")
	wants(b, `document.getElementById("name").value`, "Tom")
	b.click("#add [type=submit]")
	b.shows("#add .outcome", "Added Tom with the id 27.")
	wants(b, `document.getElementById("name").value`, "")

	b.click("#fetch summary")
	g.hold("GET /v1/pets/1 ")
	b.fill("#petId", "1\r")
	b.shows("#fetch .outcome", "Loading …")
	b.fill("#petId", "2\r")
	b.shows("#fetch .outcome", "Animal 2, category 1, pending.")
	g.release(t, 1)
	time.Sleep(300 * time.Millisecond)
	b.shows("#fetch .outcome", "Animal 2, category 1, pending.")
}

// TestThePageTellsWhatIsNotTheServicesOwn, though it is JSON: it takes it for no pet, and throws no
// key away for it.
func TestThePageTellsWhatIsNotTheServicesOwn(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.stock(1)
	var status atomic.Int64
	var body atomic.Value
	b := openTab(t, s.behind(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if status.Load() == 0 || !strings.HasPrefix(r.URL.Path, "/v1/") {
			pass.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Load()))
		fmt.Fprint(w, body.Load())
	})+"/")
	b.useKey(s.key)
	b.shows("#list .outcome", "1 pet.")
	for _, test := range []struct {
		status int64
		body   string
	}{
		{200, `{"ok":true}`}, {200, "null"}, {200, `[{"ok":true}]`},
		{502, `{"error":"no upstream"}`},
		{401, `{"detail":"log in first"}`}, {404, "[]"},
	} {
		body.Store(test.body)
		status.Store(test.status)
		want := fmt.Sprintf("The response was %d %s, and not the service’s own.", test.status,
			http.StatusText(int(test.status)))
		b.click(`[data-status="pending"]`)
		b.shows("#list .outcome", want)
		b.shows("#list .body", test.body)
		b.add("Rex")
		b.shows("#add .outcome", want)
		eval[bool](b, `(document.querySelector("#add .outcome").textContent = "", true)`)
	}
	b.state("not-own")
	status.Store(0)
	b.click(`[data-status=""]`)
	b.shows("#list .outcome", "1 pet.")
}

// TestThePageSpeaksEachTime, also the same words: a screen reader hears only what changes.
func TestThePageSpeaksEachTime(t *testing.T) {
	_, b := startPage(t, 0)
	eval[bool](b, `(() => {
		window.heard = [];
		new MutationObserver(() => heard.push(document.getElementById("said").textContent.trim()))
			.observe(document.getElementById("said"),
				{childList: true, characterData: true, subtree: true});
		navigator.clipboard.writeText = async () => {};
		return true;
	})()`)
	for range 3 {
		b.click("#list .copy")
	}
	eventually(t, longEnough, func() error {
		if got := eval[string](b, "heard.join()"); got != "Copied,Copied,Copied" {
			return fmt.Errorf("a screen reader hears %q", got)
		}
		return nil
	})
}

// TestThePageBeginsWithTheFirstCall, on a phone too, and leads from each code to what to do.
func TestThePageBeginsWithTheFirstCall(t *testing.T) {
	s, b := startPage(t, 0)
	b.do(chromedp.EmulateViewport(390, 844))
	b.drawn()
	lowest := map[string]float64{".base": 280, ".start": 350, "#start-code": 650}
	for selector, most := range lowest {
		top := eval[float64](b,
			fmt.Sprintf("document.querySelector(%q).getBoundingClientRect().top", selector))
		if top > most {
			t.Errorf("on a phone %s begins at %v, below %v", selector, top, most)
		}
	}
	b.shows(".base", s.url)
	b.click("#add .docs > summary")
	for _, width := range []int64{390, 1280} {
		b.do(chromedp.EmulateViewport(width, 844))
		b.click(`#add .failures [href="#unsupported_media_type"]`)
		eventually(t, longEnough, func() error {
			if !eval[bool](b, isInView("#unsupported_media_type")) {
				return fmt.Errorf("at %d pixels the link does not lead to its code", width)
			}
			return nil
		})
		b.shows("#unsupported_media_type", "is not application/json")
		b.shows("#unsupported_media_type", "Send Content-Type: application/json")
	}
	b.useKey(s.newKey("-plan", "business"))
	b.shows("#gauges", "99,999 of 100,000 left")
	b.state("large-limits")
}

func TestThePageSaysThatAKeyIsWrong(t *testing.T) {
	s, b := startPage(t, 0)
	b.click("#fetch summary")
	for _, send := range []string{
		`[data-status="sold"]`, "#add [type=submit]", "#fetch [type=submit]",
		"#key-form [type=submit]",
	} {
		b.click(send)
		b.shows("#key-error", "Paste your API key here first.")
		wants(b, focus, "key")
		eval[bool](b, `(() => {
			document.activeElement.blur();
			document.getElementById("key-error").textContent = "";
			return true;
		})()`)
	}
	b.fill("#key", " Bearer \r")
	b.shows("#key-error", "Paste your API key here first.")
	if n := b.sent(); n != 0 {
		t.Errorf("%d requests were sent without a key", n)
	}
	b.agree("sold")
	b.state("no-key")

	b.fill("#key", "pet_live_wrong\r")
	b.shows("#key-error",
		"the API key is not valid. Requests without a valid key count for your network address.")
	b.shows("#gauges", "Address 59 of 60 left")
	b.shows("#list .answer", "www-authenticate: Bearer")
	wants(b, focus, "key")
	b.state("wrong-key")
	b.fill("#key", "schlüssel\r")
	b.shows("#key-error", "only letters, digits, and underscores")
	b.useKey(s.key)
	b.shows("#list .outcome", "Your key works. There are no sold pets.")
	b.shows("#gauges", "Minute")
	b.isEmpty("#key-error")
}

// What people copy has more around it than the key.
func TestThePageTakesAKeyAsItWasCopied(t *testing.T) {
	s, b := startPage(t, 1)
	for _, pasted := range []string{
		s.key, "  " + s.key + "\t", "Bearer " + s.key, " bearer  " + s.key + " ",
		"Authorization: Bearer " + s.key,
		`"Authorization: Bearer ` + s.key + `"`, s.key[:20] + " " + s.key[20:],
		"export KEY=" + s.key, " KEY='" + s.key + "'", `$env:KEY = "` + s.key + `"`,
	} {
		eval[string](b, fmt.Sprintf(`scrollTo(0, 0), document.getElementById("key").value = %q`,
			pasted))
		sent := b.sent()
		b.click("#key-form [type=submit]")
		b.shows("#list .outcome", "Your key works. 1 pet.")
		b.shows("#key-note", "Your key works. It ends in "+s.key[len(s.key)-4:]+".")
		wants(b, `document.getElementById("key").value`, s.key)
		if n := b.sent(); n != sent+1 {
			t.Errorf("%d requests for a key", n-sent)
		}
		wants(b, isInView("#list .outcome"), true)
		wants(b, focus, "list-title")
		b.do(chromedp.Reload())
		b.shows("#list .outcome", "1 pet.")
	}
	b.click("#reveal")
	wants(b, `getComputedStyle(document.getElementById("key")).webkitTextSecurity`, "none")
	b.state("shown-key")
}

// agree checks that the filter shown as chosen is the one in the request, in the
// sample, and in the page's address.
func (b *tab) agree(status string) {
	b.t.Helper()
	in := map[string]string{
		"the filter": eval[string](b,
			`[...document.querySelectorAll("[data-status][aria-pressed=true]")]
			.map((e) => e.dataset.status && "status=" + e.dataset.status).join()`),
		"the sample":  eval[string](b, code("#list")),
		"the address": eval[string](b, "location.search"),
	}
	b.mu.Lock()
	if n := len(b.requests); n > 0 && strings.Contains(b.requests[n-1].URL, "/v1/") {
		in["the request"] = b.requests[n-1].URL
	}
	b.mu.Unlock()
	for what, got := range in {
		if _, filter, found := strings.Cut(got, "status="); found != (status != "") ||
			!strings.HasPrefix(filter, status) {
			b.t.Errorf("%q is asked for, and %s is %q", status, what, got)
		}
	}
}

// oneClock checks for two seconds that whatever tells how long to wait tells the same.
func (b *tab) oneClock() {
	b.t.Helper()
	told := map[string]bool{}
	for deadline := time.Now().Add(20 * time.Second); len(told) < 3; time.Sleep(
		30 * time.Millisecond) {
		got := eval[[]string](b,
			`[document.querySelector(".gauge.empty .reset").textContent.replace(/.* in /, ""),
			document.querySelector("#list .outcome [aria-hidden]").textContent]`)
		if got[0] == "" || got[1] != got[0] {
			b.t.Fatalf("the gauge and the message tell to wait %q", got)
		}
		told[got[0]] = true
		if time.Now().After(deadline) {
			b.t.Fatalf("the clock stays at %v", told)
		}
	}
}

func TestThePageHasAnAddressForEveryPlaceOfTheList(t *testing.T) {
	s, b := startPage(t, 45)
	b.useKey(s.key)
	b.shows("#list .outcome", "Page 1: 20 pets")
	at := func(search, outcome, first string) {
		t.Helper()
		b.shows("#list .outcome", outcome)
		b.shows("#list tbody tr:first-child", first)
		wants(b, "location.search", search)
	}
	b.click(`[data-limit="5"]`)
	at("?limit=5", "Page 1: 5 pets, and", "Animal 1")
	b.click(`[data-status="sold"]`)
	at("?status=sold&limit=5", "Page 1: 5 sold pets, and", "Animal 3")
	b.agree("sold")
	b.click("#next")
	at("?status=sold&limit=5&page=2&after=15", "Page 2: 5 sold pets, and", "Animal 18")
	b.click("#next")
	at("?status=sold&limit=5&page=3&after=15,30", "Page 3: 5 sold pets.", "Animal 33")
	b.state("deep")
	b.click("#previous")
	at("?status=sold&limit=5&page=2&after=15", "Page 2: 5 sold pets, and", "Animal 18")

	b.do(chromedp.Reload())
	at("?status=sold&limit=5&page=2&after=15", "Page 2: 5 sold pets, and", "Animal 18")
	b.agree("sold")
	b.click(".operations a[href='#add']") // a link within the page is no other place of the list
	sent := b.sent()
	b.back()
	b.back()
	at("?status=sold&limit=5&page=3&after=15,30", "Page 3: 5 sold pets.", "Animal 33")
	if n := b.sent() - sent; n != 1 {
		t.Errorf("going back twice, once past a link within the page, sends %d requests", n)
	}
	for _, want := range [][3]string{
		{"?status=sold&limit=5&page=2&after=15", "Page 2: 5 sold pets, and", "Animal 18"},
		{"?status=sold&limit=5", "Page 1: 5 sold pets, and", "Animal 3"},
		{"?limit=5", "Page 1: 5 pets, and", "Animal 1"},
		{"", "Page 1: 20 pets, and", "Animal 1"},
	} {
		b.back()
		at(want[0], want[1], want[2])
	}
	b.agree("")

	// An address from elsewhere, of which not all makes sense.
	b.do(chromedp.Navigate(s.address() + "/?limit=7&status=lost&page=9&after=30,x"))
	at("?limit=7&status=lost&page=9&after=30,x", "Page 1: 20 pets, and", "Animal 1")
	b.do(chromedp.Navigate(s.address() + "/?page=9&after=40"))
	at("?page=9&after=40", "Page 9: 5 pets.", "Animal 41")
	b.shows("#previous", "First page")
	b.click("#previous")
	at("", "Page 1: 20 pets, and", "Animal 1")
	b.do(chromedp.Navigate(s.address() + "/?page=2&after=9223372036854775806"))
	b.shows("#list .code", "after=9223372036854775806")
	b.shows("#page-number", "Page 2")
}

// back is the browser's button.
func (b *tab) back() {
	b.t.Helper()
	eval[bool](b, `new Promise((gone) => {
		addEventListener("popstate", () => gone(true), {once: true});
		history.back();
	})`)
}

// A new pet is the last of the list, wherever that was.
func TestThePageShowsANewPetAtOnce(t *testing.T) {
	s, b := startPage(t, 19)
	b.useKey(s.key)
	b.shows("#list .outcome", "19 pets.")
	add := func(name, status, outcome, search string) {
		t.Helper()
		b.fill("#name", name)
		b.fill("#categoryId", "1")
		eval[string](b, fmt.Sprintf(`document.getElementById("status").value = %q`, status))
		b.click("#add [type=submit]")
		b.shows("#add .outcome", "Added "+name+" with the id")
		b.shows("#added td", name)
		b.shows("#list .outcome", outcome)
		b.shows("#list .fresh", name)
		wants(b, "location.search", search)
		b.shows("#added a", "See it in the list")
		b.click("#added a")
		wants(b, isInView("#list .fresh"), true)
	}
	add("Ada", "", "20 pets.", "")                        // the page had room
	add("Ben", "", "Newest: 20 pets.", "?page=0&after=1") // the page is full
	b.click(`[data-limit="5"]`)
	b.shows("#list .outcome", "Page 1: 5 pets, and")
	b.click(`[data-status="sold"]`)
	b.shows("#list .outcome", "Page 1: 5 sold pets, and")
	add("Cleo", "sold", "Newest: 2 sold pets.", "?status=sold&limit=5&page=0&after=17")
	// not one that the filter shows
	add("Dan", "pending", "Newest: 5 pets.", "?limit=5&page=0&after=18")
	b.state("newest")
	b.click("#previous")
	b.shows("#list .outcome", "Page 1: 5 pets, and")

	// With nothing left, the list is not asked for.
	last := s.newKey("-plan", "enterprise", "-per-minute", "2", "-per-day", "100")
	b.useKey(last)
	b.shows("#gauges", "1 of 2 left")
	sent := b.sent()
	b.add("Eve")
	b.shows("#add .outcome", "Added Eve with the id 24.")
	b.shows("#added td", "Eve")
	if n := b.sent() - sent; n != 1 {
		t.Errorf("%d requests were sent with one left", n)
	}
}

func TestTheSamplesOfThePageRun(t *testing.T) {
	s, b := startPage(t, 21)
	runs := func(language string, want map[string]string) {
		t.Helper()
		for section, answer := range want {
			if got := b.runs(section, s.key); !strings.Contains(got, answer) ||
				!strings.Contains(got, "20") {
				t.Errorf("%s in %s prints %q, and not %s", section, language, got, answer)
			}
		}
	}
	languages := []string{"Python", "JavaScript", "Go", "curl"}
	looked := planted.Some(t.Name(), 1, languages)
	for i, language := range languages {
		b.click("#fetch summary")
		b.click("#add-code-" + language)
		b.shows(".start [aria-selected=true]", language)
		b.shows("#start-how", map[string]string{
			"Python":     "Save this as pets.py and, in a terminal, run KEY=pet_live_… python3",
			"JavaScript": "Save this as pets.mjs and, in a terminal, run KEY=pet_live_… node",
			"Go":         "Save this as pets.go and, in a terminal, run KEY=pet_live_… go run",
			"curl":       "In a terminal, with your key in the first line:",
		}[language])
		runs(language, map[string]string{
			".start": `"id":20`, "#list": `"name":"Animal 1"`, "#add": `"name":"Rex"`,
			"#fetch": `"name":"Animal 1"`,
		})
		if slices.Contains(looked, language) {
			b.state("in-" + language)
		}
		b.do(chromedp.Reload()) // it is remembered
		b.shows("#list [aria-selected=true]", language)
		b.useKey(s.key)
		b.shows("#list .outcome", "Your key works.")

		// As the samples follow what is chosen and typed, however awkward it is.
		name := fmt.Sprintf("`\"}'\\$(id)\u202e\u200b${1} %%s {} %d", i)
		quoted, err := json.Marshal(name)
		noError(t, err)
		b.click(`[data-limit="5"]`)
		b.shows("#list .outcome", "5 pets")
		eval[string](b, fmt.Sprintf(`document.getElementById("name").value = %s`, quoted))
		b.fill("#categoryId", "-9223372036854775808\r")
		b.shows("#add .outcome", "Added")
		body := b.text("#add .body")
		if got := b.runs("#add", s.key); !strings.Contains(got, body) {
			t.Errorf("%s adds %s, and the page %s", language, got, body)
		}
		if invisible := strings.ContainsAny(eval[string](b, code("#add")),
			"\u202e\u200b"); invisible {
			t.Errorf("the sample in %s has characters that nobody sees", language)
		}
		b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(s.address()+"/"))
		b.shows("h1", "A pet store API")
	}
	b.do(chromedp.Focus(chromedp.CSS("#list-code-curl")))
	b.press(kb.ArrowLeft)
	wants(b, focus, "list-code-Go")
}

// Nothing may move under somebody's eyes: neither while the page is loaded, in
// whatever state it was left, nor when an answer comes or a wait ends.
func TestThePageDoesNotMoveByItself(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.stock(45)
	far := s.behind(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			// as far away as another continent: the page is drawn long before
			time.Sleep(150 * time.Millisecond)
		}
		pass.ServeHTTP(w, r)
	})
	b := openTab(t, far+"/")
	still := func(when string) {
		t.Helper()
		moved := eval[[]string](b, `new Promise((done) => {
			const moved = [];
			const tell = ({node, previousRect: p, currentRect: c}) => {
				const what = node?.id || node?.className || node?.nodeName;
				return what + " from " + [p.x, p.y] + " to " + [c.x, c.y];
			};
			new PerformanceObserver((list) => {
				for (const entry of list.getEntries()) {
					if (entry.entryType === "mark") done(moved);
					else if (!entry.hadRecentInput) moved.push(...entry.sources.map(tell));
				}
			}).observe({type: "layout-shift", buffered: true});
			new PerformanceObserver(() => done(moved)).observe({type: "mark", buffered: true});
			requestAnimationFrame(() => setTimeout(() => performance.mark("now"), 100));
		})`)
		for _, what := range moved {
			t.Errorf("%s: %s", when, what)
		}
	}
	for _, width := range []int64{390, 1280} {
		b.do(chromedp.EmulateViewport(width, 844), chromedp.Navigate("about:blank"),
			chromedp.Navigate(far+"/"))
		b.shows("h1", "A pet store API")
		still("the start")
		key := s.newKey("-plan", "enterprise", "-per-minute", "5", "-per-day", "100")
		b.useKey(key)
		b.shows("#list .outcome", "Page 1: 20 pets")
		b.click("#list-code-Go")
		still("the list")
		for _, from := range []string{
			"0", "document.getElementById('list').offsetTop",
			"document.querySelector('#list .docs').offsetTop - 500",
			"document.body.scrollHeight",
		} {
			eval[bool](b, "(scrollTo(0, "+from+"), true)")
			b.do(chromedp.Reload())
			b.shows("#list .outcome", "Page 1: 20 pets")
			still("a reload at " + from)
		}
		b.click(`[data-status="sold"]`)
		b.shows("#list .outcome", "retry in")
		still("a refusal")
		b.do(chromedp.Reload())
		b.shows("#list .outcome", "Not sent: the service asked to wait")
		still("a reload during a wait")
		eval[bool](b, fmt.Sprintf(`(sessionStorage.setItem(%q, Date.now() + 1500), true)`,
			"pausedUntil "+far+"/v1/pets"))
		b.do(chromedp.Reload())
		b.shows("#said", "You can send again.")
		still("the end of a wait")
		eval[bool](b, "(localStorage.clear(), sessionStorage.clear(), true)")
	}
}

func TestThePageShowsNamesAsTheyAre(t *testing.T) {
	s := start(t)
	names := []string{
		`<script>document.title = "ran"</script><img src=x onerror="document.title = 'ran'">`,
		strings.Repeat("W", 200), strings.Repeat("🐕", 200), "  two  spaces  ",
		"كلب صغير 7",
		"\u202eright to left", strings.Repeat("\ufdfd", 3), `"};'\''$(id)`,
	}
	for _, name := range names {
		body, err := json.Marshal(map[string]any{"name": name, "categoryId": int64(math.MinInt64)})
		noError(t, err)
		s.addPet(string(body))
	}
	b := openTab(t, s.address()+"/")
	b.useKey(s.key)
	b.shows("#list .outcome", fmt.Sprint(len(names), " pets."))
	shown := eval[[]string](b,
		`[...document.querySelectorAll("#list tbody bdi")].map((e) => e.textContent)`)
	if !slices.Equal(shown, names) {
		t.Errorf("the page shows %q for %q", shown, names)
	}
	b.state("names")
	wants(b, "document.title", "Pet Store") // or a name was taken for HTML

	last := names[len(names)-1]
	b.add(last)
	b.shows("#add .outcome", "with the id 9.")
	b.click("#fetch summary")
	b.fill("#petId", "9\r")
	b.shows("#fetch .outcome", "category 1")
	for _, selector := range []string{"#added bdi", "#add .outcome bdi", "#fetch .outcome bdi"} {
		// A bdi keeps the direction of the name to itself.
		wants(b, contentOf(selector), last)
	}
	wants(b, `document.querySelectorAll("#fetch .body bdi.string").length`, 2) // and the status
	if got := b.runs("#add", s.key); !strings.Contains(got, "Idempotency-Replayed: true") {
		t.Errorf("the curl line of %s is another request: %s", last, got)
	}
}

// The prefix is taken off by a proxy, as in the README, and the public address
// in Link is one that this browser cannot reach.
func TestThePageWorksBehindAPrefix(t *testing.T) {
	s := start(t, "-base-url", "https://petstore.invalid/shop/v1")
	s.stock(7)
	proxy := s.behind(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		http.StripPrefix("/shop", pass).ServeHTTP(w, r)
	})
	b := openTab(t, proxy+"/shop/")
	b.shows("#start-code", proxy+"/shop/v1/pets")
	b.useKey(s.key)
	b.shows("#list .outcome", "7 pets.")
	b.click(`[data-limit="5"]`)
	b.shows("#list .outcome", "Page 1: 5 pets, and there are more.")
	b.click("#next")
	b.shows("#list .outcome", "Page 2: 2 pets.")
	b.shows("#list .code", proxy+"/shop/v1/pets?limit=5&after=5")
}

func TestThePageCanBeUsedFromTheKeyboard(t *testing.T) {
	s, b := startPage(t, 25)
	b.press("\t")
	wants(b, "document.activeElement.textContent", "Skip to the content")
	b.press("\r")
	b.tabTo("#key")
	b.press(s.key + "\r")
	b.shows("#list .outcome", "Page 1: 20 pets")
	b.tabTo("#next")
	b.press("\r")
	b.shows("#list .outcome", "Page 2: 5 pets.")
	b.press("\r") // there is no page 3, and the focus must stay
	wants(b, focus, "next")
	b.tabTo("#name")
	b.press("Rex\t7\t\t\r")
	b.shows("#add .outcome", "Added Rex with the id 26.")
}

// tabTo presses Tab until the element has the focus.
func (b *tab) tabTo(selector string) {
	b.t.Helper()
	for range 40 {
		b.press("\t")
		if eval[bool](b, fmt.Sprintf("document.activeElement.matches(%q)", selector)) {
			return
		}
	}
	b.t.Fatalf("Tab does not get to %s", selector)
}

func TestThePageExplainsItselfWithoutJavaScript(t *testing.T) {
	s := start(t)
	b := openWithoutScripts(t, s.address())
	for _, want := range []string{
		"A pet store API", "curl -i", "With JavaScript, you could try the service right here.",
		"Sample response",
		"ratelimit-policy", "Idempotency-Key", "invalid_parameter", "Requests per minute",
		"What to do",
	} {
		b.shows("main", want)
	}
	b.isEmpty("button, input, select, .limits, .live") // which do nothing
	// the pet comes after it is asked for
	for i, want := range []string{"200 OK", "201 Created", "404 Not Found"} {
		section := []string{"#list", "#add", "#fetch"}[i]
		if i == 2 {
			b.click("#fetch summary")
		}
		sample := strings.ReplaceAll(b.text(section+" .code"), "http://127.0.0.1:8080", s.address())
		if i == 2 {
			sample = strings.ReplaceAll(sample, "/pets/1", "/pets/2")
		}
		if got := runSample(t, "curl", sample, s.key); !strings.Contains(got, want) {
			t.Errorf("%s in %s gets %s", sample, section, got)
		}
	}
	b.picture("no-script.png")
}

// The policy is the last defence, should a stranger's text ever become HTML.
func TestTheBrowserHoldsThePageToItsPolicy(t *testing.T) {
	_, b := startPage(t, 0)
	b.shows("h1", "A pet store API")
	for what, script := range map[string]string{
		"script-src": `const e = document.createElement("script");
			e.textContent = "1";
			document.body.append(e)`,
		"style-src":   `document.body.setAttribute("style", "color: red")`,
		"connect-src": `fetch("http://localhost:9/").catch(() => {})`,
		"form-action": `const f = document.createElement("form");
			f.action = "http://localhost:9/";
			document.body.append(f);
			f.submit()`,
		"base-uri": `const e = document.createElement("base");
			e.href = "http://localhost:9/";
			document.head.append(e)`,
	} {
		stopped := eval[string](b, fmt.Sprintf(`new Promise((stopped) => {
			const stop = (e) => stopped(e.effectiveDirective);
			document.addEventListener("securitypolicyviolation", stop, {once: true});
			setTimeout(() => stopped("nothing"), 5000);
			%s;
		})`, script))
		if !strings.HasPrefix(stopped, what) {
			t.Errorf("%s: %s stops it", what, stopped)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = nil // the console tells of each
}
