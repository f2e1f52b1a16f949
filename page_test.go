package main

// The page for people, as far as it can be checked without a browser.

import (
	"fmt"
	"html"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var pageHTML, pageCSS, pageJS = webFile("index.html"), webFile("page.css"), webFile("page.js")

func TestThePageIsServedWithoutAKeyAndWithoutALimit(t *testing.T) {
	s := openShop(t)
	for path, contentType := range map[string]string{
		"/":         "text/html; charset=utf-8",
		"/page.css": "text/css; charset=utf-8",
		"/page.js":  "text/javascript; charset=utf-8",
	} {
		get := s.call("GET", path, "Authorization:").is(200).has("Content-Type", contentType).has("X-RateLimit-Limit", "")
		s.call("HEAD", path, "Authorization:").is(200).has("Content-Type", contentType).has("Content-Length", fmt.Sprint(len(get.body)))
		unchanged := s.call("GET", path, "Authorization:", "If-None-Match: "+get.header.Get("ETag")).is(304)
		for _, a := range []reply{get, unchanged} {
			a.has("X-Content-Type-Options", "nosniff").has("Referrer-Policy", "no-referrer").
				has("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "+
					"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		}
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
			s.call(method, path, "Authorization:").is(405, CodeMethodNotAllowed).has("Allow", "GET, HEAD")
		}
	}
	s.call("GET", "/index.html", "Authorization:").is(404, CodeNotFound)
}

// What the policy forbids would be silently ignored by a browser.
func TestThePageHasNothingInlineAndNothingOfAnotherHost(t *testing.T) {
	s := openShop(t)
	page := s.call("GET", "/").is(200).body
	for what, pattern := range map[string]string{
		"a style or an event handler in an attribute": `<[^>]*\s(style|on\w+)=`,
		"a style sheet of its own":                    `<style`,
		"a script without src":                        `<script(\s+(type|async|defer)(="[^"]*")?)*>`,
	} {
		if found := regexp.MustCompile(pattern).FindString(page); found != "" {
			t.Errorf("index.html has %s: %s", what, found)
		}
	}
	for _, match := range regexp.MustCompile(`(?:src|href|action)="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		switch target := match[1]; {
		case strings.HasPrefix(target, "data:image/"),
			strings.HasPrefix(target, "#") && strings.Contains(page, `id="`+target[1:]+`"`):
		case strings.HasPrefix(target, "/"), strings.Contains(target, ":"):
			t.Errorf("%s is not relative: behind a prefix it would be missed", target)
		default:
			s.call("GET", "/"+target).is(200)
		}
	}
	for _, file := range []string{"/page.css", "/page.js"} {
		elsewhere := regexp.MustCompile(`https?://|\burl\(|@import|innerHTML`)
		if found := elsewhere.FindString(s.call("GET", file).body); found != "" {
			t.Errorf("%s has %s", file, found)
		}
	}
}

func TestThePageIsSmall(t *testing.T) {
	if total := len(pageHTML) + len(pageCSS) + len(pageJS); total >= 80_000 {
		t.Errorf("the page has %d bytes", total)
	}
}

func TestThePageSaysWhatTheServiceDoes(t *testing.T) {
	page := openShop(t).call("GET", "/?status=sold&limit=5&page=2&after=15").is(200).body // the list's place
	want := []string{
		sunset.Format("2 January 2006"), sunset.Format("2006-01-02"), fmt.Sprintf("Up to %d characters", maxName),
		"petstore key create", "<h1>A pet store API</h1>", "Get an API key", "Shown after your first request", "default (available)",
	}
	for operation, id := range pageSections {
		method, path, _ := strings.Cut(operation, " ")
		route := fmt.Sprintf(`<b class="%s">%s</b> <code>/v1%s</code>`, strings.ToLower(method), method, path)
		want = append(want, `<a href="#`+id+`"><span class="route">`+route, `<p class="route">`+route)
	}
	for _, status := range []PetStatus{Available, Pending, Sold} {
		want = append(want, fmt.Sprintf("<option>%s</option>", status), fmt.Sprintf("data-status=%q", status))
	}
	for _, text := range want {
		if !strings.Contains(page, text) {
			t.Errorf("the page does not say %s", text)
		}
	}
}

// pageSections are the sections of the page that explain an operation.
var pageSections = map[string]string{"GET /pets": "list", "POST /pets": "add", "GET /pets/{petId}": "fetch"}

// pageSection is the HTML of a section, without the places where a word may break.
func pageSection(t *testing.T, id string) string {
	t.Helper()
	_, section, found := strings.Cut(strings.ReplaceAll(pageHTML, "<wbr>", ""), ` id="`+id+`"`)
	section, _, closed := strings.Cut(section, "</section>")
	if !found || !closed {
		t.Fatalf("the page has no section %s", id)
	}
	return section
}

// pageText is what a reader sees of HTML.
func pageText(s string) string {
	return html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(s, ""))
}

// pageErrors are the errors that HTML names, as "400 invalid_body".
func pageErrors(s string) (found []string) {
	for _, match := range regexp.MustCompile(`(\d{3}) <code>(\w+)</code>`).FindAllStringSubmatch(s, -1) {
		found = append(found, match[1]+" "+match[2])
	}
	slices.Sort(found)
	return found
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
		rows := regexp.MustCompile(`<th scope="row"><code>(.*?)</code> <small>(.*?)</small></th><td>(.*?)</td>`)
		for _, row := range rows.FindAllStringSubmatch(section, -1) {
			name, meaning := row[1]+" "+row[2], pageText(row[3])
			schema, known := want[name]
			if !known {
				t.Errorf("%s has no parameter %s", operation, name)
			}
			delete(want, name)
			for _, bound := range parameterBounds(schema) {
				if !regexp.MustCompile(`\b` + bound + `\b`).MatchString(meaning) {
					t.Errorf("%s: of %s the page says %q, and not %s", operation, name, meaning, bound)
				}
			}
		}
		for name := range want {
			t.Errorf("%s: the page does not say that there is %s", operation, name)
		}
		if got, want := pageErrors(section), describedErrors(described); !slices.Equal(got, want) {
			t.Errorf("%s: the page has the errors %q, and the description %q", operation, got, want)
		}
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

// The samples are of a new database with two pets, on the Free plan.
func TestTheSampleResponsesOfThePageAreReal(t *testing.T) {
	for operation, id := range pageSections {
		section := pageSection(t, id)
		s := openShop(t)
		s.key = s.newKey(plans["free"])
		real := s.call("POST", "/v1/pets", `={"name":"Rex","categoryId":7}`).is(201)
		switch id {
		case "list":
			s.call("POST", "/v1/pets", `={"name":"Tom","categoryId":3,"status":"sold"}`).is(201)
			real = s.call("GET", "/v1/pets").is(200)
		case "fetch":
			real = s.call("GET", "/v1/pets/1").is(200)
		}
		match := regexp.MustCompile(`(?s)<span class="status">(.*?)</span>.*` +
			`<span class="headers">(.*?)\n\n</span><span class="body">(.*?)</span>`).FindStringSubmatch(section)
		if match == nil {
			t.Fatalf("%s has no sample response", operation)
		}
		if got, want := match[1], fmt.Sprint(real.status, " ", http.StatusText(real.status)); got != want {
			t.Errorf("%s: the sample is %s, and the response %s", operation, got, want)
		}
		body := strings.ReplaceAll(match[3], "},\n {", "},{")
		if body != real.body {
			t.Errorf("%s: the sample is\n%s\nand the response\n%s", operation, body, real.body)
		}
		var names []string
		headers := fields(describedOperations()[operation], "responses", fmt.Sprint(real.status), "headers")
		for _, line := range strings.Split(html.UnescapeString(match[2]), "\n") {
			name, value, _ := strings.Cut(line, ": ")
			names = append(names, name)
			for described, header := range headers {
				if strings.EqualFold(described, name) && value != fmt.Sprint(printed(field(header, "example"))) {
					t.Errorf("%s: %s is not the example of the description", operation, line)
				}
			}
		}
		var want []string
		for name := range real.header {
			want = append(want, strings.ToLower(name))
		}
		slices.Sort(want)
		if !slices.Equal(names, want) {
			t.Errorf("%s: the sample has the headers\n%q, and the response\n%q", operation, names, want)
		}
		if want := fmt.Sprint("content-length: ", len(real.body)); !strings.Contains(match[2], want) {
			t.Errorf("%s: the sample lacks %s", operation, want)
		}
	}
}

// printed writes a number of the description without an exponent.
func printed(value any) any {
	if number, ok := value.(float64); ok {
		return int64(number)
	}
	return value
}

func TestTheTablesOfThePageAreThoseOfTheService(t *testing.T) {
	rows := regexp.MustCompile(`<tr><th scope="row">(.*?)</th><td>(.*?)</td>(?:<td>(.*?)</td>)?</tr>`)

	shown := map[string]string{}
	for _, row := range rows.FindAllStringSubmatch(pageSection(t, "plans"), -1) {
		shown[strings.ToLower(row[1])] = row[2] + " " + row[3]
	}
	thousands := regexp.MustCompile(`(\d)(\d{3})\b`)
	for name, q := range plans {
		want := thousands.ReplaceAllString(fmt.Sprint(q.PerMinute, " ", q.PerDay), "$1,$2")
		if q == (quota{}) {
			want = "its own its own"
		}
		if shown[name] != want {
			t.Errorf("the page has %q for the plan %s, and not %q", shown[name], name, want)
		}
	}
	if len(shown) != len(plans) {
		t.Errorf("the page has the plans %v", shown)
	}

	var headers []string
	for _, row := range rows.FindAllStringSubmatch(pageSection(t, "headers"), -1) {
		for _, code := range regexp.MustCompile(`<code>(.*?)</code>`).FindAllStringSubmatch(row[1], -1) {
			headers = append(headers, code[1])
		}
	}
	named := map[string]bool{}
	for _, operation := range describedOperations() {
		for status := range fields(operation, "responses") {
			for header := range fields(operation, "responses", status, "headers") {
				named[header] = true
			}
		}
	}
	slices.Sort(headers)
	if want := slices.Sorted(maps.Keys(named)); !slices.Equal(headers, want) {
		t.Errorf("the page has the headers\n%q, and the description\n%q", headers, want)
	}

	var all []string
	for _, operation := range describedOperations() {
		all = append(all, describedErrors(operation)...)
	}
	slices.Sort(all)
	section := pageSection(t, "errors")
	if got, want := pageErrors(section), slices.Compact(all); !slices.Equal(got, want) {
		t.Errorf("the page has the errors\n%q, and the description\n%q", got, want)
	}
	for _, row := range rows.FindAllStringSubmatch(section, -1) {
		if what := pageText(row[2]); len(what) < 10 {
			t.Errorf("the page says to do %q about %s", what, row[1])
		}
	}
	sample := regexp.MustCompile(`"An error">(.*?)</pre>`).FindStringSubmatch(section)
	if sample == nil || openShop(t).call("GET", "/v1/pets?limit=0").is(400).body != sample[1] {
		t.Errorf("the page shows the error %q", sample)
	}
}
