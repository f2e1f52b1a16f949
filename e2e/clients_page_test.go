package e2e

// The page for people, in a real Chromium: what a person sees, clicks and types.
// In each state axe-core looks for barriers, in both themes; with SCREENSHOTS=DIR
// in the environment there is a picture of each, at two widths, to look at.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
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
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("install Chromium (Debian: chromium)")
	}
	axe, err := os.ReadFile(filepath.Join(nodeModules(t), "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)

	b := &tab{t: t, ctx: ctx, axe: string(axe), host: strings.Split(address+"//", "/")[2]}
	if err := chromedp.Listen(ctx, b.listen); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(address))
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, problem := range b.problems {
			t.Errorf("the browser complains: %s", problem)
		}
	})
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
		b.problems = append(b.problems, fmt.Sprint(e.ExceptionDetails.Text, " ", e.ExceptionDetails.Exception.Description))
	case *runtime.EventConsoleAPICalled:
		b.problems = append(b.problems, fmt.Sprint("console.", e.Type))
	}
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) click(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// fill replaces what is in a field, as somebody who types.
func (b *tab) fill(selector, text string) {
	b.t.Helper()
	eval[string](b, fmt.Sprintf("document.querySelector(%q).value = ''", selector))
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// eval is the value of a JavaScript expression.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%.200s: %v", expression, err)
	}
	return value
}

// text is what an element shows; of several that are to be seen, line by line.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf(`[...document.querySelectorAll(%q)].filter((e) => e.checkVisibility()).map((e) => e.innerText).join("\n")`, selector))
}

// shows waits until an element shows a text, whatever the case its style gives it.
func (b *tab) shows(selector, want string) {
	b.t.Helper()
	var got string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = b.text(selector); strings.Contains(got, want) {
			return
		}
	}
	b.t.Fatalf("%s shows %q, and not %q", selector, got, want)
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

// state checks how the page looks now: no barrier that axe-core knows of, and
// nothing wider than the window.
func (b *tab) state(name string) {
	b.t.Helper()
	for _, theme := range []string{"light", "dark"} {
		b.theme(theme)
		for _, width := range []int64{390, 1280} {
			b.do(chromedp.EmulateViewport(width, 900))
			what := fmt.Sprintf("%s, %s, %d pixels", name, theme, width)
			if got := eval[int64](b, "document.documentElement.scrollWidth"); got > width {
				b.t.Errorf("%s: the page is %d pixels wide", what, got)
			}
			b.drawn()
			b.picture(fmt.Sprintf("%s-%s-%d.png", name, theme, width))
		}
		for _, barrier := range b.barriers(theme) {
			b.t.Errorf("%s, %s: %s", name, theme, barrier)
		}
	}
}

// barriers are the violations that axe-core finds. The dark theme differs from
// the light one in its colours only.
func (b *tab) barriers(theme string) (found []string) {
	b.t.Helper()
	options := map[string]string{"light": `{resultTypes: ["violations"]}`, "dark": `{resultTypes: ["violations"], runOnly: ["color-contrast"]}`}[theme]
	if !eval[bool](b, "'axe' in window") {
		b.do(chromedp.Evaluate[chromedp.Void](b.axe + ";undefined"))
	}
	result := eval[string](b, "axe.run("+options+").then((r) => JSON.stringify(r.violations))")
	var violations []struct {
		ID, Help string
		Nodes    []struct{ HTML, FailureSummary string }
	}
	if err := json.Unmarshal([]byte(result), &violations); err != nil {
		b.t.Fatal(err)
	}
	for _, v := range violations {
		for _, n := range v.Nodes {
			found = append(found, fmt.Sprintf("%s: %s\n%s\n%s", v.ID, v.Help, n.HTML, n.FailureSummary))
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
	if err != nil {
		b.t.Fatal(err)
	}
}

// theme makes the page light or dark, and still.
func (b *tab) theme(name string) {
	b.t.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		b.t.Fatal(err)
	}
}

// drawn waits until the page is drawn as it is now, from its top.
func (b *tab) drawn() {
	b.t.Helper()
	eval[bool](b, "new Promise((drawn) => { scrollTo(0, 0); requestAnimationFrame(() => requestAnimationFrame(() => drawn(true))); })")
}

// TestThePicturesOfThePage makes the pictures of the README, in the folder that
// PICTURES names.
func TestThePicturesOfThePage(t *testing.T) {
	folder := os.Getenv("PICTURES")
	if folder == "" {
		t.Skip("PICTURES names no folder")
	}
	s := start(t)
	for i, name := range strings.Fields("Rex Tom Luna Milo Bella Coco Nala Balu Simba Lilly Charly Kira Max Mia Paul Emma Oskar Frida") {
		status := []string{"available", "available", "pending", "available", "sold"}[i%5]
		s.addPet("", fmt.Sprintf(`{"name":%q,"categoryId":%d,"status":%q}`, name, 1+i%4, status))
	}
	b := openTab(t, s.address()+"/")
	b.do(chromedp.EmulateViewport(1200, 900))
	b.fill("#key", s.newKey("-plan", "pro")+"\r")
	b.shows("#gauges", "299 of 300 left")
	b.click(`[data-limit="5"]`)
	b.shows("#gauges", "298 of 300 left")
	for _, theme := range []string{"light", "dark"} {
		b.theme(theme)
		b.drawn()
		shot, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		if err != nil {
			t.Fatal(err)
		}
		writePicture(t, filepath.Join(folder, "page-"+theme+".png"), shot)
	}
}

// writePicture writes the upper left part of a PNG with the 128 colours that it
// has most of, which makes it a quarter as large.
func writePicture(t *testing.T, file string, shot []byte) {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	part := image.Rect(0, 0, 1200, 1110).Intersect(full.Bounds())
	pixels := map[color.Color]int{}
	for y := range part.Dy() {
		for x := range part.Dx() {
			pixels[full.At(x, y)]++
		}
	}
	colors := color.Palette(slices.SortedFunc(maps.Keys(pixels), func(a, b color.Color) int {
		return cmp.Or(pixels[b]-pixels[a], cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	}))
	colors = colors[:min(len(colors), 128)]
	nearest := map[color.Color]uint8{}
	for c := range pixels {
		nearest[c] = uint8(colors.Index(c))
	}
	picture := image.NewPaletted(part, colors)
	for y := range part.Dy() {
		for x := range part.Dx() {
			picture.SetColorIndex(x, y, nearest[full.At(x, y)])
		}
	}
	var encoded bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&encoded, picture); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d colours, %d bytes", file, len(pixels), encoded.Len())
	if err := os.WriteFile(file, encoded.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// stock adds animals: of any three, one is available, one pending and one sold.
func (s *server) stock(n int) {
	s.t.Helper()
	for i := range n {
		status := []string{"available", "pending", "sold"}[i%3]
		s.addPet("", fmt.Sprintf(`{"name":"Animal %d","categoryId":%d,"status":%q}`, i+1, i%7, status))
	}
}

// runs the curl line that an exchange shows in a shell, where KEY is the key,
// and returns what it prints.
func (b *tab) runs(section, key string) string {
	b.t.Helper()
	cmd := exec.Command("sh", "-c", b.text(section+" .curl"))
	cmd.Env = append(os.Environ(), "KEY="+key)
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("%s: %v", cmd, err)
	}
	return string(out)
}

func TestThePageTakesAPersonThroughTheService(t *testing.T) {
	s := start(t)
	s.stock(45)
	key := s.newKey("-plan", "pro")
	b := openTab(t, s.address()+"/")
	b.shows("h1", "pet store")
	b.shows("#first-call", s.url+"/pets")
	b.state("start")
	if n := b.sent(); n != 0 {
		t.Errorf("the page has sent %d requests before it was asked to", n)
	}

	b.fill("#key", key+"\r")
	b.shows("#list .outcome", "Page 1: 20 pets, and there are more.")
	b.shows("#gauges", "299 of 300 left")
	b.shows("#gauges", "9,999 of 10,000 left")
	b.state("list")

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
	b.click("#next")
	b.shows("#list .outcome", "Page 3: 5 pets.")
	b.state("last-page")
	b.click("#previous")
	b.shows("#list tbody tr:first-child", "Animal 21")
	if got := b.runs("#list", key); !strings.Contains(got, "HTTP/1.1 200 OK") || !strings.Contains(got, `"name":"Animal 21"`) {
		t.Errorf("the curl line of the second page gets %s", got)
	}

	b.click("#list .copy")
	b.shows("#said", "Copied")

	b.fill("#petId", "7")
	b.click("#fetch [type=submit]")
	b.shows("#fetch .outcome", "Animal 7, category 6, available.")
	b.shows("#fetch .answer", "sunset: Thu, 05 Dec 2030 00:00:00 GMT")
	b.state("fetched")
	b.fill("#petId", "4700")
	b.click("#fetch [type=submit]")
	b.shows("#petId-error", "there is no animal with this id")
	b.state("not-found")

	b.keepsTheSecret(key)
	b.click("#forget")
	b.shows("#list .outcome", "Use a key")
	if got := eval[string](b, "document.getElementById('key').value + JSON.stringify(sessionStorage)"); strings.Contains(got, key) {
		t.Errorf("the key is still there after it was to be forgotten: %s", got)
	}
}

// keepsTheSecret checks that the key is in the tab's session storage and its
// field, and nowhere else.
func (b *tab) keepsTheSecret(key string) {
	b.t.Helper()
	if !eval[bool](b, fmt.Sprintf("Object.values(sessionStorage).includes(%q)", key)) {
		b.t.Error("the key is not kept in the session storage")
	}
	if eval[int](b, "localStorage.length + document.cookie.length") != 0 {
		b.t.Error("the page keeps something beyond the tab")
	}
	if strings.Contains(eval[string](b, "location.href + document.documentElement.outerHTML"), key) {
		b.t.Error("the key is in the address or in the text of the page")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.requests {
		if strings.Contains(r.URL, key) || fmt.Sprint(r.Headers["Authorization"]) == "Bearer "+key != strings.Contains(r.URL, "/v1/") {
			b.t.Errorf("%s %s with Authorization %v", r.Method, r.URL, r.Headers["Authorization"])
		}
	}
}

func TestThePageAddsAnAnimal(t *testing.T) {
	s := start(t)
	key := s.newKey("-plan", "free")
	b := openTab(t, s.address()+"/")
	b.fill("#key", key+"\r")
	b.shows("#list .outcome", "There are no pets.")
	b.state("empty")

	// 64 bits, of which a JavaScript number holds 53.
	b.fill("#name", "Rex")
	b.fill("#categoryId", "9007199254740993")
	b.click("#add [type=submit]")
	b.shows("#add .outcome", "Added Rex with the id 1.")
	b.shows("#list tbody", "9007199254740993")
	b.state("added")
	page := b.text("#add .body")
	if got := b.runs("#add", key); !strings.Contains(got, "Idempotency-Replayed: true") || !strings.HasSuffix(got, page) {
		t.Errorf("the curl line was answered\n%s\nbut the page's request\n%s", got, page)
	}

	b.fill("#name", "Rex") // another of the same name is another animal
	b.fill("#categoryId", "9007199254740993\r")
	b.shows("#add .outcome", "Added Rex with the id 2.")

	b.fill("#name", " ")
	b.fill("#categoryId", "1.5")
	b.click("#add [type=submit]")
	b.shows("#name-error", "must not be blank")
	b.shows("#categoryId-error", "must be an integer of at most 64 bits, without fraction or exponent")
	b.shows("#add .status", "400 Bad Request")
	if got := eval[string](b, "document.activeElement.id"); got != "name" {
		t.Errorf("the focus is on %q and not on the first wrong field", got)
	}
	b.state("refused")

	b.fill("#name", "Tom")
	b.fill("#categoryId", "")
	b.do(chromedp.KeyEvent("\r"))
	b.shows("#categoryId-error", "is required")
	if got := b.text("#name-error"); got != "" {
		t.Errorf("a name that is right has the error %q", got)
	}
	b.fill("#categoryId", "-9223372036854775808\r")
	b.shows("#add .outcome", "Added Tom with the id 3.")
	b.shows("#list tbody", "-9223372036854775808")
}

func TestThePageWaitsWhenALimitIsSpent(t *testing.T) {
	s := start(t)
	s.stock(3)
	b := openTab(t, s.address()+"/")
	b.fill("#key", s.newKey("-plan", "enterprise", "-per-minute", "3", "-per-day", "100")+"\r")
	for left := 2; left > 0; left-- {
		b.shows("#gauges", fmt.Sprintf("%d of 3 left", left))
		b.click(`[data-status="sold"]`)
	}
	b.shows("#gauges", "0 of 3 left")
	b.click(`[data-status="sold"]`)
	b.shows("#list .outcome", "the limit of 3 requests is used up; retry in")
	b.shows("#add [type=submit]", "Add the pet")
	b.state("spent")

	meter := eval[string](b, `document.querySelector("[role=meter]").ariaValueText`)
	if !strings.HasPrefix(meter, "0 of 3 left, whole again in ") {
		t.Errorf("the gauge of the minute tells a screen reader %q", meter)
	}
	for deadline := time.Now().Add(20 * time.Second); meter == eval[string](b, `document.querySelector("[role=meter]").ariaValueText`); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the gauge stays at %q", meter)
		}
	}

	// To insist would get the key banned.
	sent := b.sent()
	b.click(`[data-status="sold"]`)
	b.click("#add [type=submit]")
	b.click("#fetch [type=submit]")
	b.do(chromedp.Reload())
	b.shows("#pause", "The service asked to wait. You can send again in")
	if n := b.sent() - sent; n != 0 {
		t.Errorf("the page has sent %d requests while it was to wait", n)
	}

	b.fill("#key", s.key+"\r") // has limits of its own
	b.shows("#list .outcome", "3 pets.")
}

// unreliable is a proxy that, on demand, answers for the service that it is busy,
// or loses the answers on the way.
func unreliable(t *testing.T, s *server) (proxy *httptest.Server, busy, lossy *atomic.Bool) {
	t.Helper()
	service, err := url.Parse(s.address())
	if err != nil {
		t.Fatal(err)
	}
	busy, lossy = new(atomic.Bool), new(atomic.Bool)
	pass := httputil.NewSingleHostReverseProxy(service)
	proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case busy.Load():
			w.Header().Set("Retry-After", "5")
			http.Error(w, "<h1>busy</h1>", http.StatusServiceUnavailable)
		case lossy.Load():
			pass.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		default:
			pass.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(proxy.Close)
	return proxy, busy, lossy
}

func TestThePageGoesOnAfterAFault(t *testing.T) {
	s := start(t)
	s.stock(1)
	proxy, busy, lossy := unreliable(t, s)
	b := openTab(t, proxy.URL+"/")
	b.fill("#key", s.key+"\r")
	b.shows("#list .outcome", "1 pet.")

	busy.Store(true)
	b.click(`[data-status=""]`)
	b.shows("#list .outcome", "The response was 503 Service Unavailable, and not the service’s own.")
	if !eval[bool](b, `[...document.querySelectorAll(".send")].every((e) => e.ariaDisabled === "true")`) {
		t.Error("something can be sent during the wait")
	}
	busy.Store(false)
	b.shows("#said", "You can send again.")
	b.click(`[data-status="available"]`)
	b.shows("#list .outcome", "1 available pet.")

	lossy.Store(true)
	b.fill("#name", "Rex")
	b.fill("#categoryId", "1\r")
	b.shows("#add .outcome", "No response came")
	b.shows("#add .status", "No response")
	b.state("no-answer")
	lossy.Store(false)
	b.click("#add [type=submit]")
	b.shows("#add .outcome", "Added Rex with the id 2.")
	b.shows("#add .answer", "idempotency-replayed: true")
	b.shows("#list .outcome", "2 available pets.")
}

func TestThePageSaysThatAKeyIsWrong(t *testing.T) {
	s := start(t)
	b := openTab(t, s.address()+"/")
	b.click(`[data-status="sold"]`)
	b.shows("#key-error", "an API key is required")
	b.shows("#list .answer", "www-authenticate: Bearer")
	b.state("no-key")
	b.fill("#key", "pet_live_wrong\r")
	b.shows("#key-error", "the API key is not valid")
	b.shows("#gauges", "Address 58 of 60 left")
	b.shows("#limits-note", "no valid key")
	if got := eval[string](b, "document.activeElement.id"); got != "key" {
		t.Errorf("the focus is on %q and not on the key", got)
	}
	b.state("wrong-key")
	b.fill("#key", "schlüssel\r")
	b.shows("#key-error", "only letters, digits and underscores")
	b.fill("#key", s.key+"\r")
	b.shows("#list .outcome", "There are no pets.")
	b.shows("#gauges", "Minute")
	if got := b.text("#key-error, #limits-note"); strings.TrimSpace(got) != "" {
		t.Errorf("with a valid key the page still says %q", got)
	}
}

func TestThePageShowsNamesAsTheyAre(t *testing.T) {
	s := start(t)
	names := []string{
		`<script>document.title = "ran"</script><img src=x onerror="document.title = 'ran'">`,
		strings.Repeat("W", 200), strings.Repeat("🐕", 200), "  two  spaces  ", "كلب صغير 7", "\u202eright to left", `"};'\''$(id)`,
	}
	for _, name := range names {
		body, err := json.Marshal(map[string]any{"name": name, "categoryId": int64(math.MinInt64)})
		if err != nil {
			t.Fatal(err)
		}
		s.addPet("", string(body))
	}
	b := openTab(t, s.address()+"/")
	b.fill("#key", s.key+"\r")
	b.shows("#list .outcome", fmt.Sprint(len(names), " pets."))
	shown := eval[[]string](b, `[...document.querySelectorAll("#list bdi")].map((e) => e.textContent)`)
	if !slices.Equal(shown, names) {
		t.Errorf("the page shows %q for %q", shown, names)
	}
	b.state("names")
	if title := eval[string](b, "document.title"); title != "Pet Store" {
		t.Errorf("a name was taken for HTML: the title is %q", title)
	}

	last := names[len(names)-1]
	b.fill("#name", last)
	b.fill("#categoryId", "1\r")
	b.shows("#add .outcome", "with the id 8.")
	if got := b.runs("#add", s.key); !strings.Contains(got, "Idempotency-Replayed: true") {
		t.Errorf("the curl line of %s is another request: %s", last, got)
	}
}

// The prefix is taken off by a proxy, as in the README, and the public address
// in Link is one that this browser cannot reach.
func TestThePageWorksBehindAPrefix(t *testing.T) {
	s := start(t, "-base-url", "https://petstore.invalid/shop/v1")
	s.stock(7)
	service, err := url.Parse(s.address())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.StripPrefix("/shop", httputil.NewSingleHostReverseProxy(service)))
	defer proxy.Close()
	b := openTab(t, proxy.URL+"/shop/")
	b.shows("#first-call", proxy.URL+"/shop/v1/pets")
	b.fill("#key", s.key+"\r")
	b.shows("#list .outcome", "7 pets.")
	b.click(`[data-limit="5"]`)
	b.shows("#list .outcome", "Page 1: 5 pets, and there are more.")
	b.click("#next")
	b.shows("#list .outcome", "Page 2: 2 pets.")
	b.shows("#list .curl", proxy.URL+"/shop/v1/pets?limit=5&after=5")
}

func TestThePageCanBeUsedFromTheKeyboard(t *testing.T) {
	s := start(t)
	s.stock(25)
	b := openTab(t, s.address()+"/")
	b.do(chromedp.KeyEvent("\t"))
	if got := eval[string](b, "document.activeElement.textContent"); got != "Skip to the content" {
		t.Errorf("the first stop is %q", got)
	}
	b.do(chromedp.KeyEvent("\r"))
	b.tabTo("key")
	b.do(chromedp.KeyEvent(s.key + "\r"))
	b.shows("#list .outcome", "Page 1: 20 pets")
	b.tabTo("next")
	b.do(chromedp.KeyEvent("\r"))
	b.shows("#list .outcome", "Page 2: 5 pets.")
	b.do(chromedp.KeyEvent("\r")) // there is no page 3, and the focus must stay
	if got := eval[string](b, "document.activeElement.id"); got != "next" {
		t.Errorf("on the last page the focus is on %q", got)
	}
	b.tabTo("name")
	b.do(chromedp.KeyEvent("Rex\t7\t\t\r"))
	b.shows("#add .outcome", "Added Rex with the id 26.")
}

// tabTo presses Tab until the element has the focus.
func (b *tab) tabTo(id string) {
	b.t.Helper()
	for range 40 {
		b.do(chromedp.KeyEvent("\t"))
		if eval[string](b, "document.activeElement.id") == id {
			return
		}
	}
	b.t.Fatalf("Tab does not get to %s", id)
}

func TestThePageExplainsItselfWithoutJavaScript(t *testing.T) {
	s := start(t)
	b := openTab(t, "about:blank")
	b.host = strings.TrimPrefix(s.address(), "http://")
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Navigate(s.address() + "/"))
	for _, want := range []string{"pet store", "/v1/pets", "curl -i", "With JavaScript, you could try the service right here."} {
		b.shows("main", want)
	}
	if got := b.text("button, input, .limits"); strings.TrimSpace(got) != "" {
		t.Errorf("what does nothing is shown: %q", got)
	}
	b.picture("no-script.png")
}

// The policy is the last defence, should a stranger's text ever become HTML.
func TestTheBrowserHoldsThePageToItsPolicy(t *testing.T) {
	s := start(t)
	b := openTab(t, s.address()+"/")
	b.shows("h1", "pet store")
	for what, script := range map[string]string{
		"script-src":  `const e = document.createElement("script"); e.textContent = "1"; document.body.append(e)`,
		"style-src":   `document.body.setAttribute("style", "color: red")`,
		"connect-src": `fetch("http://localhost:9/").catch(() => {})`,
		"form-action": `const f = document.createElement("form"); f.action = "http://localhost:9/"; document.body.append(f); f.submit()`,
		"base-uri":    `const e = document.createElement("base"); e.href = "http://localhost:9/"; document.head.append(e)`,
	} {
		stopped := eval[string](b, fmt.Sprintf(`new Promise((stopped) => {
			document.addEventListener("securitypolicyviolation", (e) => stopped(e.effectiveDirective), {once: true});
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
