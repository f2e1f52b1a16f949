package main

// The service and its description, web/openapi.json, held against each other.
//
// Every response that a test in handlers_test.go sees passes through
// describedResponse: its status must be described for the operation, its headers
// must be those described, and its body must have the described schema. Every body
// that gets 201 passes through describedRequest. The tests below go the other way:
// what is described must be what is served.

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"
)

// object is a JSON object of the description.
type object = map[string]any

var described = func() (doc object) {
	if err := json.Unmarshal([]byte(webFile("openapi.json")), &doc); err != nil {
		panic(err)
	}
	return doc
}()

// field walks the description by the names of fields, following references.
func field(from any, path ...string) any {
	for _, name := range append([]string{""}, path...) {
		if o, ok := from.(object); ok && name != "" {
			from = o[name]
		}
		if o, ok := from.(object); ok && o["$ref"] != nil {
			reference := strings.TrimPrefix(o["$ref"].(string), "#/")
			from = field(described, strings.Split(reference, "/")...)
		}
	}
	return from
}

func fields(from any, path ...string) object {
	o, _ := field(from, path...).(object)
	return o
}

// operations of the description, by "METHOD /path".
func describedOperations() object {
	operations := object{}
	for path, item := range fields(described, "paths") {
		for method, operation := range item.(object) {
			operations[strings.ToUpper(method)+" "+path] = operation
		}
	}
	return operations
}

// seen is every status and error code that a test has met, by operation.
var seen = struct {
	sync.Mutex
	responses map[string]bool // "METHOD /path status code"
}{responses: map[string]bool{}}

// operationOf finds the operation of a request under /v1: "" if its path is not
// described. A method that is not described belongs to some operation of the path.
func operationOf(method, path string) string {
	pattern := "/pets"
	id, ofPet := strings.CutPrefix(path, "/v1/pets/")
	if ofPet && id != "" && !strings.Contains(id, "/") {
		pattern = "/pets/{petId}"
	} else if path != "/v1/pets" {
		return ""
	}
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if fields(described, "paths", pattern, strings.ToLower(method)) != nil {
		return method + " " + pattern
	}
	return "GET " + pattern
}

// undescribed are headers that are the transport's or another standard's.
var undescribed = regexp.MustCompile(
	`^(Date|Connection|Content-Length|Content-Type|Vary|Access-Control-.*)$`)

// describedResponse holds a response under /v1 against the description.
func describedResponse(t *testing.T, r *http.Request, a reply) {
	t.Helper()
	preflight := r.Method == http.MethodOptions && a.status == http.StatusNoContent
	operation := operationOf(r.Method, r.URL.EscapedPath())
	if operation == "" || preflight {
		return
	}
	response := fields(describedOperations()[operation], "responses", strconv.Itoa(a.status))
	if response == nil {
		t.Errorf("%s: status %d is not described for %s", a.what, a.status, operation)
		return
	}
	known := map[string]bool{}
	for name, header := range fields(response, "headers") {
		known[strings.ToLower(name)] = true
		values := a.header.Values(name)
		if required, _ := field(header, "required").(bool); len(values) == 0 && required {
			t.Errorf("%s: status %d lacks the described header %s", a.what, a.status, name)
		}
		for _, value := range values {
			var parsed any = value
			n, err := strconv.ParseFloat(value, 64)
			if err == nil && field(header, "schema", "type") == "integer" {
				parsed = n
			}
			for _, problem := range violations(field(header, "schema"), parsed) {
				t.Errorf("%s: header %s: %s %s", a.what, name, value, problem)
			}
		}
	}
	for name := range a.header {
		if !known[strings.ToLower(name)] && !undescribed.MatchString(name) {
			t.Errorf("%s: of status %d the header %s is not described", a.what, a.status, name)
		}
	}
	code := describedBody(t, r, a, response)
	seen.Lock()
	defer seen.Unlock()
	seen.responses[responseName(operation, strconv.Itoa(a.status), code)] = true
}

// responseName names a response in seen. One of 405 belongs to every operation of the path.
func responseName(operation, status, code string) string {
	method, path, _ := strings.Cut(operation, " ")
	if status == "405" {
		method = "any method"
	}
	return strings.Join([]string{method, path, status, code}, " ")
}

// describedBody holds the body of a response against the description and
// returns the code of an error. The codes of a response are its examples' names.
func describedBody(t *testing.T, r *http.Request, a reply, response object) (code string) {
	t.Helper()
	content := fields(response, "content", "application/json")
	if content == nil {
		wantEqual(t, a.body, "", a.what, ": the body, of which none is described,")
		return ""
	}
	if r.Method == http.MethodHead {
		return "HEAD"
	}
	a.has("Content-Type: application/json")
	if content["schema"] == nil {
		t.Errorf("%s: the body of status %d has no schema", a.what, a.status)
	}
	var body any
	must(t, json.Unmarshal([]byte(a.body), &body))
	if problems := violations(content["schema"], body); problems != nil {
		t.Fatalf("%s: status %d: by web/openapi.json the body %s: %s", brief(a.what), a.status,
			problems[0], brief(a.body))
	}
	if a.status >= 400 {
		code, _ = field(body, "code").(string)
		if content["examples"].(object)[code] == nil {
			t.Errorf("%s: of status %d the code %s is not described", a.what, a.status, code)
		}
	}
	return code
}

// creation describes the body of createPet.
var creation = fields(described, "paths", "/pets", "post", "requestBody",
	"content", "application/json")

// describedRequest holds the body of a request that got 201 against the description.
func describedRequest(t testing.TB, r *http.Request, status int) {
	t.Helper()
	if status != http.StatusCreated {
		return
	}
	sent, err := r.GetBody()
	must(t, err)
	var body any
	must(t, json.NewDecoder(sent).Decode(&body))
	if problems := violations(creation["schema"], body); problems != nil {
		t.Fatalf("by NewPet in web/openapi.json the body that gets 201 %s: %s", problems[0],
			brief(fmt.Sprint(body)))
	}
}

// violations reports where a value breaks a schema, such as "lacks the field name". It knows the
// keywords that the description uses; any other is a violation, lest it be thought checked.
func violations(schema any, value any) (problems []string) {
	text, _ := value.(string)
	length := float64(utf8.RuneCountInString(text))
	number, _ := value.(float64)
	list, _ := value.([]any)
	o, _ := value.(object)
	for keyword, want := range fields(schema) {
		bound, _ := want.(float64)
		parts, _ := want.([]any)
		keeps := true
		switch keyword {
		case "description", "default", "example":
		case "format":
			keeps = want != "int64" || math.Abs(number) <= 1<<63
		case "type":
			keeps = typeOf(value) == want
		case "enum":
			keeps = slices.Contains(parts, value)
		case "minimum":
			keeps = number >= bound
		case "maximum":
			keeps = number <= bound
		case "minLength":
			keeps = length >= bound
		case "maxLength":
			keeps = length <= bound
		case "pattern":
			keeps = regexp.MustCompile(want.(string)).MatchString(text)
		case "maxItems":
			keeps = len(list) <= int(bound)
		case "items":
			for _, item := range list {
				problems = append(problems, violations(want, item)...)
			}
		case "allOf":
			for _, part := range parts {
				problems = append(problems, violations(part, value)...)
			}
		case "required":
			for _, name := range parts {
				if _, isThere := o[name.(string)]; !isThere {
					problems = append(problems, fmt.Sprint("lacks the field ", name))
				}
			}
		case "properties":
			for name, part := range o {
				problems = append(problems, violations(fields(want)[name], part)...)
			}
		case "additionalProperties":
			for name := range o {
				if fields(schema, "properties")[name] == nil {
					problems = append(problems, "has the field "+name+", which is not described")
				}
			}
		default:
			keeps = false
		}
		if !keeps {
			// Both may be long, such as the pattern of a name.
			problems = append(problems, fmt.Sprintf("has %.60s, which breaks the rule %s: %.60s",
				fmt.Sprint(value), keyword, fmt.Sprint(want)))
		}
	}
	return problems
}

func typeOf(value any) string {
	switch v := value.(type) {
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	case object:
		return "object"
	}
	return "another"
}

// TestMain checks at the end of a complete run that every status and error code that is described
// was met.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // what runs beside others mostly waits
	debug.SetGCPercent(400)            // a test has little that is worth collecting
	flag.Parse()
	if testing.Short() {
		keepInMemory()
	}
	status := m.Run()
	if len(failures.names) >= mostFailures {
		fmt.Fprintf(os.Stderr, "%d tests have failed: the others were not run\n", mostFailures)
	}
	filtered := false
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.fuzz"} {
		filtered = filtered || flag.Lookup(name).Value.String() != ""
	}
	if status == 0 && !filtered {
		for _, response := range neverSeen() {
			fmt.Fprintln(os.Stderr, "web/openapi.json describes what no test has met:", response)
			status = 1
		}
	}
	os.Exit(status)
}

// keepInMemory has tests make their files in memory, where Linux has a place and room for them:
// to sync takes most of the time that go test -short has.
func keepInMemory() {
	const folder = "/dev/shm"
	free, _, isKnown := diskSpace(folder)
	if isKnown && free > 1<<28 && os.Getenv("TMPDIR") == "" {
		_ = os.Setenv("TMPDIR", folder)
	}
}

func neverSeen() (never []string) {
	for name, operation := range describedOperations() {
		for status := range fields(operation, "responses") {
			content := fields(operation, "responses", status, "content", "application/json")
			codes := slices.Collect(maps.Keys(fields(content, "examples")))
			if status < "400" {
				codes = []string{""}
			}
			for _, code := range codes {
				if a := responseName(name, status, code); !seen.responses[a] {
					never = append(never, a)
				}
			}
		}
	}
	return never
}

func TestTheDescriptionNamesTheServers(t *testing.T) {
	const production, staging = "https://pets.example/v1", "https://staging.example/v1"
	const itself, ofProduction, ofStaging = "/v1 This instance", production + " Production",
		staging + " Staging"
	for want, set := range map[string]settings{
		itself:                          {},
		ofProduction:                    {baseURL: production},
		ofProduction + ", " + ofStaging: {baseURL: production, stagingURL: staging},
		itself + ", " + ofStaging:       {stagingURL: staging},
		ofStaging:                       {baseURL: staging, stagingURL: staging, staging: true},
	} {
		var doc struct {
			Servers []struct{ URL, Description string }
			Info    struct{ Version string }
		}
		must(t, json.Unmarshal([]byte(describe(set)), &doc))
		var got []string
		for _, server := range doc.Servers {
			got = append(got, server.URL+" "+server.Description)
		}
		if strings.Join(got, ", ") != want || doc.Info.Version != "1.0.0" {
			t.Errorf("%+v: servers %v, version %s", set, got, doc.Info.Version)
		}
	}
}

// The routes are read from the source: the router cannot list them.
func TestEveryRouteIsDescribedAndEveryOperationServed(t *testing.T) {
	want := []string{
		"/openapi.json openapi", "/{$} page", "/page.css page", "/page.js page", // for people
		"/readyz readyz", // for load balancers
	}
	for path := range fields(described, "paths") {
		want = append(want, "/v1"+path) // the methods that it does not have
	}
	for name, operation := range describedOperations() {
		name = strings.Replace(name, " ", " /v1", 1)
		want = append(want, fmt.Sprint(name, " ", field(operation, "operationId")))
	}
	var served []string
	added := regexp.MustCompile(`\ts\.(add|addPublic|refuseOtherMethods)\("(.*?)", "(.*?)"`)
	for _, match := range added.FindAllStringSubmatch(readText(t, "handlers.go"), -1) {
		route := match[2]
		if match[1] != "refuseOtherMethods" {
			route += " " + match[3]
		}
		served = append(served, route)
	}
	slices.Sort(served)
	slices.Sort(want)
	wantEqual(t, served, want, "what is served, beside what is described,")
	for name, operation := range describedOperations() {
		deprecated := field(operation, "deprecated") == true
		wantEqual(t, deprecated, name == "GET /pets/{petId}",
			"whether it is deprecated to ", name)
	}
}

// TestErrorCodesAreThoseDescribed: a code is in every document that lists them, with its status.
func TestErrorCodesAreThoseDescribed(t *testing.T) {
	api := readText(t, "docs/api.md")
	schema := fields(described, "components", "schemas", "Error")
	codes := field(schema, "properties", "code", "enum").([]any)
	for code, status := range statusOfCode {
		if !slices.Contains(codes, any(string(code))) {
			t.Errorf("web/openapi.json lacks the code %s", code)
		}
		wantPart(t, api, fmt.Sprintf("| `%s` | %d |", code, status), "docs/api.md")
	}
	wantEqual(t, len(codes), len(statusOfCode), "the number of codes in web/openapi.json")
}

// TestThePatternOfNamesIsThatOfTheService: it knows every character, as a name of its own, up to
// U+FFFF. It lists what shows nothing in the version of Unicode that Go has. Specmatic takes no
// \p{Mn}, and Spectral no range above U+FFFF: there the pattern takes what the service refuses. \s
// stands for U+2028 and U+2029, which generated code cannot hold. It does not in Go, so these two
// are left out here; a test of generated clients has them.
func TestThePatternOfNamesIsThatOfTheService(t *testing.T) {
	takesSeconds(t)
	name := fields(described, "components", "schemas", "NewPet", "properties", "name")
	pattern := regexp.MustCompile(name["pattern"].(string))
	names := []string{"a b", "x\u0085", "a~!", "\u00a0 \u3000", "a\x7f"}
	for c := range rune(utf8.MaxRune + 1) {
		if c <= 0xffff || !unicode.In(c, unicode.Cf, unicode.Mn) {
			names = append(names, string(c))
		}
	}
	for _, value := range names {
		isTaken := checkName(value) == ""
		if value == "\u2028" || value == "\u2029" {
			wantEqual(t, isTaken, false, "whether the service takes a line separator alone")
			continue
		}
		if pattern.MatchString(value) != isTaken {
			t.Fatalf("of the name %+q the service says %q", value, checkName(value))
		}
	}
	wantPart(t, name["description"].(string), "Unicode "+unicode.Version, "the description")
}

// TestNoPatternHoldsARawControlOrLine: generators copy patterns into literals of their languages,
// which end at such a character.
func TestNoPatternHoldsARawControlOrLine(t *testing.T) {
	patterns := regexp.MustCompile(`"pattern": (".*")`).FindAllStringSubmatch(
		readText(t, "web/openapi.json"), -1)
	wantEqual(t, len(patterns), 3, "the number of patterns")
	for _, found := range patterns {
		var pattern string
		must(t, json.Unmarshal([]byte(found[1]), &pattern))
		if i := strings.IndexFunc(pattern, isControlOrLine); i >= 0 {
			t.Errorf("a pattern holds %+q after %d bytes", pattern[i:i+1], i)
		}
	}
}

func isControlOrLine(c rune) bool {
	return unicode.IsControl(c) || unicode.In(c, unicode.Zl, unicode.Zp)
}

// TestABodyIsTakenAsItIsDescribed: decodeNewPet and NewPet in web/openapi.json agree on which
// fields there are, which may be left out, and which values each takes.
func TestABodyIsTakenAsItIsDescribed(t *testing.T) {
	complete := fields(creation, "examples", "complete", "value")
	properties := fields(creation, "schema", "properties")
	// with is the complete body with another value of a field.
	with := func(name string, value any) object {
		body := maps.Clone(complete)
		body[name] = value
		return body
	}
	decode := func(body object) error {
		text, err := json.Marshal(body)
		must(t, err)
		return errorOf(decodeNewPet(text))
	}
	compare := func(body object) {
		t.Helper()
		err, problems := decode(body), violations(creation["schema"], body)
		if (err == nil) != (problems == nil) {
			t.Errorf("of %.50v NewPet in web/openapi.json says %q, and decodeNewPet %v",
				body, problems, err)
		}
	}
	must(t, decode(complete))
	compare(complete)
	for name, property := range properties {
		if complete[name] == nil {
			t.Errorf("the example complete in web/openapi.json lacks the field %s", name)
		}
		body := maps.Clone(complete)
		delete(body, name)
		compare(body)
		for _, value := range probes(property) {
			compare(with(name, value))
		}
	}
	// A field that decodeNewPet takes stands somewhere in the source.
	source, err := filepath.Glob("*.go")
	must(t, err)
	tried := maps.Clone(properties)
	for _, file := range source {
		for _, name := range allMatches(`"(\w+)"`, readText(t, file)) {
			if tried[name] != nil {
				continue
			}
			tried[name] = true
			if !strings.Contains(fmt.Sprint(decode(with(name, nil))), "is unknown") {
				t.Errorf("decodeNewPet takes the field %s, which NewPet in web/openapi.json lacks",
					name)
			}
		}
	}
}

// probes are values of all types, and values on both sides of each bound of a schema.
func probes(schema any) []any {
	values := []any{
		nil, true, []any{}, object{}, 1.5, 0.0, -0x1p62, 0x1p62, -0x1p65, 0x1p65,
		"", "x", " ", "\t", strings.Repeat("x", maxBody/2),
	}
	for keyword, want := range fields(schema) {
		bound, _ := want.(float64)
		parts, _ := want.([]any)
		switch keyword {
		case "minimum", "maximum":
			values = append(values, bound-1, bound, bound+1)
		case "minLength", "maxLength":
			for length := max(0, int(bound)-1); length <= int(bound)+1; length++ {
				values = append(values, strings.Repeat("é", length))
			}
		case "enum":
			for _, value := range parts {
				values = append(values, value, fmt.Sprint(value, "s"))
			}
		case "allOf":
			for _, part := range parts {
				values = append(values, probes(part)...)
			}
		}
	}
	return values
}

// TestAChangeThatClientsCanSeeIsWrittenDown in docs/api.md, and a change of texts need not be.
func TestAChangeThatClientsCanSeeIsWrittenDown(t *testing.T) {
	text, err := json.Marshal(visible(described, false))
	must(t, err)
	digest := fmt.Sprintf("%x", sha256.Sum256(text))[:8]
	_, changes, _ := strings.Cut(readText(t, "docs/api.md"), "\n## Changes of the description\n")
	written := allMatches("(?m)^\\|.*\\| `(\\w+)` \\|$", changes)
	if len(written) == 0 || written[0] != digest {
		t.Errorf("clients can see that web/openapi.json has changed: say what in a new first line"+
			" under \"Changes of the description\" in docs/api.md, with the digest %s", digest)
	}
}

// visible is a part of the description without what only people read. named is true of the fields
// of a schema: their names are no keywords.
func visible(part any, named bool) any {
	if list, isList := part.([]any); isList {
		kept := []any{}
		for _, item := range list {
			kept = append(kept, visible(item, false))
		}
		return kept
	}
	o, isObject := part.(object)
	if !isObject {
		return part
	}
	kept := object{}
	for key, value := range o {
		if named || !slices.Contains(texts, key) {
			kept[key] = visible(value, key == "properties" && !named)
		}
	}
	for name := range fields(o["examples"]) {
		if statusOfCode[ErrorCode(name)] != 0 { // the codes of a response are its examples' names
			kept[name] = true
		}
	}
	return kept
}

// texts are the keywords of what only people read.
var texts = []string{
	"title", "summary", "description", "contact", "license", "example", "examples",
}

func TestTheExamplesOfTheDescriptionAreValid(t *testing.T) {
	var walk func(path string, v any)
	walk = func(path string, v any) {
		o, _ := v.(object)
		schema := o["schema"]
		if examples, ok := o["examples"].(object); ok && schema != nil {
			for name, example := range examples {
				for _, problem := range violations(schema, field(example, "value")) {
					t.Errorf("%s: the example %s %s", path, name, problem)
				}
				e := fields(example, "value")
				status := statusOfCode[ErrorCode(name)]
				if e["code"] != nil && (e["code"] != name || e["status"] != float64(status)) {
					t.Errorf("%s: the example %s is %v", path, name, e)
				}
			}
		}
		if example := o["example"]; example != nil && schema != nil {
			for _, problem := range violations(schema, example) {
				t.Errorf("%s: the example %v %s", path, example, problem)
			}
		}
		for name, inner := range o {
			walk(path+"/"+name, inner)
		}
		list, _ := v.([]any)
		for i, inner := range list {
			walk(fmt.Sprint(path, "/", i), inner)
		}
	}
	walk("", described)
}
