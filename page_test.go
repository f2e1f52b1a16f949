package main

// The page for people, as far as it can be checked without a browser.

import (
	"compress/gzip"
	"fmt"
	"html"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var pageHTML = webFile("index.html")

func TestWhatBrowsersGetIsServedWithoutAKeyAndWithoutALimit(t *testing.T) {
	s := openShop(t)
	for path, contentType := range map[string]string{
		"/":             "text/html; charset=utf-8",
		"/page.css":     "text/css; charset=utf-8",
		"/page.js":      "text/javascript; charset=utf-8",
		"/openapi.json": "application/json",
	} {
		get := s.get(path, noKey).is(200).has("Content-Type: "+contentType, "X-RateLimit-Limit:")
		length := fmt.Sprint("Content-Length: ", len(get.body))
		s.call("HEAD", path, noKey).is(200).has("Content-Type: "+contentType, length)
		again := s.get(path, noKey, "If-None-Match: "+get.header.Get("ETag")).is(304)
		for _, a := range []reply{get, again} {
			a.has("X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer",
				"Content-Security-Policy: default-src 'none'; script-src 'self'; "+
					"style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "+
					"form-action 'none'; frame-ancestors 'none'")
		}
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
			s.call(method, path, noKey).is(405).has("Allow: GET, HEAD")
		}
	}
	s.get("/openapi.json", noKey).says(webFile("openapi.json"))
	s.get("/index.html", noKey).is(404)
}

// TestThePagesHaveNothingInlineAndNothingOfAnotherHost, the operator's neither: what the policy
// forbids would be silently ignored by a browser.
func TestThePagesHaveNothingInlineAndNothingOfAnotherHost(t *testing.T) {
	const inline = `<[^>]*\s(style|on\w+)=|<style|<script(\s+(type|async|defer)[^ >]*)*>`
	const elsewhere = `https?://|\burl\(|@import|(inner|outer)HTML|insertAdjacentHTML`
	const most = 150_000
	total := 0
	for _, file := range []string{
		"index.html", "page.css", "page.js", "operator.html", "operator.css", "operator.js",
	} {
		forbidden := elsewhere
		if strings.HasSuffix(file, ".html") {
			forbidden = inline
		}
		const name = "http://www.w3.org/2000/svg" // and no address
		text := strings.ReplaceAll(webFile(file), name, "")
		wantEqual(t, regexp.MustCompile(forbidden).FindString(text), "",
			"what is forbidden in ", file)
		total += len(text)
	}
	if total > most {
		t.Errorf("both pages together have %d bytes, and may have at most %d: take something out "+
			"of web/ for what comes in", total, most)
	}
}

// wantLinks checks that the links of a page lead somewhere, and are relative, so that the page
// works behind a prefix.
func wantLinks(t *testing.T, page string, statusOf func(path string) int) {
	t.Helper()
	for _, target := range allMatches(`(?:src|href|action)="([^"]*)"`, page) {
		id, isAnchor := strings.CutPrefix(target, "#")
		switch {
		case strings.HasPrefix(target, "data:image/"):
		case target == "#newest": // page.js makes its place
		case isAnchor:
			wantPart(t, page, `id="`+id+`"`, "the page")
		case strings.HasPrefix(target, "/"), strings.Contains(target, ":"):
			t.Errorf("%s is not relative", target)
		default:
			wantEqual(t, statusOf("/"+target), 200, "the status of ", target)
		}
	}
}

func TestTheLinksOfThePagesLeadSomewhere(t *testing.T) {
	s := openShop(t)
	wantLinks(t, pageHTML, func(path string) int {
		return s.get(path).status
	})
	operatorHTML := webFile("operator.html")
	wantLinks(t, operatorHTML, func(path string) int {
		return s.onDebug(path).Code
	})
	for _, path := range []string{"metrics", "healthz", "readyz", "debug/pprof/"} {
		wantPart(t, operatorHTML, `href="`+path+`"`, "the operator's page")
	}
	wantEqual(t, s.onDebug("/nothing").Code, 404, "the status of what is not there")
}

func TestThePageSaysWhatTheServiceDoes(t *testing.T) {
	want := []string{
		sunset.Format("2 January 2006"),
		sunset.Format("2006-01-02"),
		fmt.Sprintf("Up to %d characters", maxName),
	}
	want = slices.AppendSeq(want, linesOf(`
		petstore key create
		<h1>A pet store API</h1>
		Get an API key
		Shown after your first request
		default (available)
		<option>available</option>
		<option>pending</option>
		<option>sold</option>
		data-status="available"
		data-status="pending"
		data-status="sold"`))
	for operation, id := range pageSections {
		method, path, _ := strings.Cut(operation, " ")
		route := fmt.Sprintf(`<b class="%s">%s</b> <code>/v1%s</code>`,
			strings.ToLower(method), method, path)
		want = append(want,
			`<a href="#`+id+`"><span class="route">`+route, `<p class="route">`+route)
	}
	for _, text := range want {
		wantPart(t, pageHTML, text, "the page")
	}
	// A reader of the list may reload the page, or pass its address on.
	openShop(t).get("/?status=sold&limit=5&page=2&after=15").is(200)
}

// pageSections are the sections of the page that explain an operation.
var pageSections = map[string]string{
	"GET /pets":         "list",
	"POST /pets":        "add",
	"GET /pets/{petId}": "fetch",
}

// pageSection is the HTML of a section, without the places where a word may break.
func pageSection(t *testing.T, id string) string {
	t.Helper()
	page := strings.ReplaceAll(pageHTML, "<wbr>", "")
	_, section, found := strings.Cut(page, ` id="`+id+`"`)
	section, _, closed := strings.Cut(section, "</section>")
	if !found || !closed {
		t.Fatalf("the page has no section %s", id)
	}
	return section
}

// allMatches is what the groups of a pattern match in a text, with blanks between.
func allMatches(pattern, text string) (found []string) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, strings.Join(match[1:], " "))
	}
	return found
}

// pageText is what a reader sees of HTML.
func pageText(s string) string {
	return html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(s, ""))
}

// pageErrors are the errors that HTML names, as "400 invalid_body".
func pageErrors(s string) []string {
	return slices.Sorted(slices.Values(allMatches(`(\d{3}) <code>(\w+)</code>`, s)))
}

// describedErrors are those of an operation of the description.
func describedErrors(operation any) (codes []string) {
	for status, response := range fields(operation, "responses") {
		for code := range fields(response, "content", "application/json", "examples") {
			if status >= "400" {
				codes = append(codes, status+" "+code)
			}
		}
	}
	slices.Sort(codes)
	return codes
}

func TestThePageNamesTheParametersAndErrorsOfEveryOperation(t *testing.T) {
	for operation, described := range describedOperations() {
		section := pageSection(t, pageSections[operation])
		want := map[string]object{} // the parameters' schemas, by name and place
		for _, p := range fields(described)["parameters"].([]any) {
			place := field(p, "in").(string)
			if field(p, "required") == true {
				place += ", required"
			}
			want[field(p, "name").(string)+" "+place] = fields(p, "schema")
		}
		body := fields(described, "requestBody", "content", "application/json", "schema")
		for name, schema := range fields(body, "properties") {
			place := "body"
			if slices.Contains(body["required"].([]any), any(name)) {
				place += ", required"
			}
			want[name+" "+place] = schema.(object)
		}
		rows := regexp.MustCompile(
			`<th scope="row"><code>(.*?)</code> <small>(.*?)</small></th><td>(.*?)</td>`)
		for _, row := range rows.FindAllStringSubmatch(section, -1) {
			name, meaning := row[1]+" "+row[2], pageText(row[3])
			schema, known := want[name]
			if !known {
				t.Errorf("%s has no parameter %s", operation, name)
			}
			delete(want, name)
			for _, bound := range parameterBounds(schema) {
				wantMatch(t, meaning, `\b`+bound+`\b`, "what the page says of ", name)
			}
		}
		for name := range want {
			t.Errorf("%s: the page does not say that there is %s", operation, name)
		}
		wantEqual(t, pageErrors(section), describedErrors(described), "the errors of ", operation)
	}
}

// parameterBounds is what a reader must be told of a schema.
func parameterBounds(schema object) (bounds []string) {
	for _, name := range []string{"minimum", "maximum", "minLength", "maxLength", "default"} {
		if bound, set := schema[name]; set {
			bounds = append(bounds, fmt.Sprint(bound))
		}
	}
	for _, more := range append([]any{schema}, anys(schema["allOf"])...) {
		for _, value := range anys(field(more, "enum")) {
			bounds = append(bounds, value.(string))
		}
	}
	return bounds
}

func anys(v any) []any {
	list, _ := v.([]any)
	return list
}

// TestTheSampleResponsesOfThePageAreReal: they are of a new database with two pets, on the Free
// plan. Their headers are the examples of the description, except for the ETag.
func TestTheSampleResponsesOfThePageAreReal(t *testing.T) {
	for operation, id := range pageSections {
		s := openShop(t)
		s.key = s.newKey(planQuota("free"))
		real := s.post(`={"name":"Rex","categoryId":7}`).is(201)
		switch id {
		case "list":
			s.post(`={"name":"Tom","categoryId":3,"status":"sold"}`).is(201)
			real = s.list().is(200)
		case "fetch":
			real = s.get("/v1/pets/1").is(200)
		}
		sample := regexp.MustCompile(`(?s)<span class="status">(.*?)</span>.*` +
			`<span class="headers">(.*?)\n\n</span><span class="body">(.*?)</span>`)
		match := sample.FindStringSubmatch(pageSection(t, id))
		if match == nil {
			t.Fatalf("%s has no sample response", operation)
		}
		status, body := match[1], strings.ReplaceAll(match[3], "},\n {", "},{")
		want := fmt.Sprint(real.status, " ", http.StatusText(real.status))
		wantEqual(t, status, want, "the status of the sample of ", operation)
		wantEqual(t, body, real.body, "the body of the sample of ", operation)
		got := http.Header{}
		for _, line := range strings.Split(html.UnescapeString(match[2]), "\n") {
			name, value, _ := strings.Cut(line, ": ")
			got.Add(name, value)
		}
		response := fields(describedOperations()[operation], "responses", fmt.Sprint(real.status))
		for name, header := range fields(response, "headers") {
			if name != "ETag" && real.header.Get(name) != "" { // each body has its own
				real.header.Set(name, fmt.Sprint(printed(field(header, "example"))))
			}
		}
		real.header["Date"] = got["Date"]
		wantEqual(t, got, real.header, "the headers of the sample of ", operation)
	}
}

func TestTheTablesOfThePageAreThoseOfTheService(t *testing.T) {
	rows := regexp.MustCompile(
		`<tr(?: id="\w+")?><th scope="row">(.*?)</th><td>(.*?)</td>(?:<td>(.*?)</td>)?</tr>`)

	headers := map[string]bool{}
	var errors []string
	for _, operation := range describedOperations() {
		for status := range fields(operation, "responses") {
			for header := range fields(operation, "responses", status, "headers") {
				headers[header] = true
			}
		}
		errors = append(errors, describedErrors(operation)...)
	}
	shownHeaders := map[string]bool{}
	for _, row := range rows.FindAllStringSubmatch(pageSection(t, "headers"), -1) {
		for _, header := range allMatches(`<code>(.*?)</code>`, row[1]) {
			shownHeaders[header] = true
		}
	}
	wantEqual(t, shownHeaders, headers, "the headers of the page")

	slices.Sort(errors)
	section := pageSection(t, "errors")
	wantEqual(t, pageErrors(section), slices.Compact(errors), "the errors of the page")
	for _, row := range rows.FindAllStringSubmatch(section, -1) {
		if cause, what := pageText(row[2]), pageText(row[3]); len(cause) < 10 || len(what) < 10 {
			t.Errorf("the page says %q and to do %q about %s", cause, what, row[1])
		}
	}
	sample := allMatches(`"An error">(.*?)</pre>`, section)
	real := openShop(t).get("/v1/pets?limit=0").is(400).body
	wantEqual(t, sample, []string{real}, "the error on the page")
}

// TestThePageSaysWhichEnvironmentThisIs: who comes with a key of the other one gets nowhere.
func TestThePageSaysWhichEnvironmentThisIs(t *testing.T) {
	for staging, want := range map[bool]string{false: "Production", true: "Staging"} {
		s := openShop(t, func(c *settings) { c.staging = staging })
		page := s.get("/").is(200).body
		wantPart(t, page, `<body data-environment="`+want+`">`, "the page")
	}
}

// TestWhatAPageNeedsIsCompressedForWhoTakesThat: half of the time on a slow link. What is
// compressed has a validator of its own, since it has other bytes.
func TestWhatAPageNeedsIsCompressedForWhoTakesThat(t *testing.T) {
	s := openShop(t)
	for _, path := range []string{"/", "/page.js", "/page.css", "/openapi.json"} {
		plain := s.get(path, "Accept-Encoding: identity").is(200).has("Content-Encoding:")
		for _, refused := range []string{"br", "gzip;q=0", "gzip; q=0.000", "xgzip", "*"} {
			s.get(path, "Accept-Encoding: "+refused).says(plain.body).has("Content-Encoding:")
		}
		for _, accepted := range []string{"gzip", "br, GZIP;q=0.1", "deflate,gzip ; q=1"} {
			a := s.get(path, "Accept-Encoding: "+accepted).is(200).has("Content-Encoding: gzip")
			a.has("Vary: Accept-Encoding", fmt.Sprint("Content-Length: ", len(a.body)))
			z, err := gzip.NewReader(strings.NewReader(a.body))
			must(t, err)
			body, err := io.ReadAll(z)
			must(t, err)
			wantEqual(t, string(body), plain.body, "what is compressed of ", path)
			if len(a.body) > len(plain.body)/2 {
				t.Errorf("%s has %d bytes, and compressed %d", path, len(plain.body), len(a.body))
			}
			tag, other := a.header.Get("ETag"), plain.header.Get("ETag")
			s.get(path, "Accept-Encoding: gzip", "If-None-Match: "+tag).is(304)
			s.get(path, "Accept-Encoding: gzip", "If-None-Match: "+other).is(200)
		}
	}
}

// TestEveryFieldOfAPetIsShownToPeople: the table of docs/api.md, and on the page the table, the
// form and what it sends, the head and rows of the list, and the sentence of a fetched pet.
// TestEveryFieldOfAPetGoesEverywhere looks for the rest.
func TestEveryFieldOfAPetIsShownToPeople(t *testing.T) {
	api, add, script := readText(t, "docs/api.md"), pageSection(t, "add"), webFile("page.js")
	bodyOf := func(function, end string) string {
		_, text, _ := strings.Cut(script, "function "+function+"(")
		text, _, _ = strings.Cut(text, end)
		return text
	}
	request, row := bodyOf("request", "\n  }"), bodyOf("row", "\n}")
	fetch := bodyOf("setUpFetch", "\n}")
	heads := strings.Join(allMatches(`<th scope="col">(.*?)</th>`, pageSection(t, "list")), " ")
	for field := range fields(creation, "schema", "properties") {
		wantPart(t, api, "| `"+field+"` |", "the table of fields in docs/api.md")
		wantPart(t, add, "<code>"+field+"</code>", "the table of fields in web/index.html")
		wantPart(t, add, `name="`+field+`"`, "the form in web/index.html")
		wantPart(t, request, `"`+field+`":`, "what request() of web/page.js sends")
		word := `\b` + field + `\b` // it is taken out of the pet, and then shown
		wantMatch(t, row, `(?s)^\{.*`+word+`.* \}.*`+word, "what row() of web/page.js shows")
		wantMatch(t, fetch, `(?s)\{ [^}]*`+word+`[^}]*\} = answer\.value;.*`+word,
			"what setUpFetch() of web/page.js shows")
		head := strings.TrimSuffix(field, "Id") // a category's
		wantPart(t, strings.ToLower(heads), head, "the head of the list in web/index.html")
	}
}
