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
	responses := fields(describedOperations()[operation], "responses")
	response := fields(responses[strconv.Itoa(a.status)])
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
	seen.responses[strings.TrimSpace(fmt.Sprint(operation, " ", a.status, " ", code))] = true
	if a.status == http.StatusMethodNotAllowed { // belongs to every operation of the path
		_, path, _ := strings.Cut(operation, " ")
		for method := range fields(described, "paths", path) {
			seen.responses[fmt.Sprint(strings.ToUpper(method), " ", path, " 405 ", code)] = true
		}
	}
}

// describedBody holds the body of a response against the description and
// returns the code of an error. The codes of a response are its examples' names.
func describedBody(t *testing.T, r *http.Request, a reply, response object) (code string) {
	t.Helper()
	content := fields(response, "content", "application/json")
	if content == nil {
		if a.body != "" {
			t.Errorf("%s: status %d has a body, and none is described", a.what, a.status)
		}
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
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Errorf("%s: %v", a.what, err)
	}
	for _, problem := range violations(content["schema"], body) {
		t.Errorf("%s: status %d: the body %s %s", a.what, a.status, a.body, problem)
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
	for _, problem := range violations(creation["schema"], body) {
		t.Errorf("the body %.50v gets 201, but by NewPet in web/openapi.json it %s", body, problem)
	}
}

// violations reports where a value breaks a schema. It knows the keywords that
// the description uses; any other is a violation, lest it be thought checked.
func violations(schema any, value any) (problems []string) {
	add := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf(format, args...))
	}
	text, _ := value.(string)
	number, _ := value.(float64)
	o, _ := value.(object)
	for keyword, want := range fields(schema) {
		switch keyword {
		case "description", "default", "example":
		case "format":
			if want == "int64" && math.Abs(number) > 1<<63 {
				add("has more than 64 bits")
			}
		case "type":
			if got := typeOf(value); got != want && !(want == "number" && got == "integer") {
				add("is of type %s, not %s", got, want)
			}
		case "enum":
			if !slices.Contains(want.([]any), value) {
				add("is none of %v", want)
			}
		case "minimum":
			if number < want.(float64) {
				add("is less than %v", want)
			}
		case "maximum":
			if number > want.(float64) {
				add("is more than %v", want)
			}
		case "minLength":
			if utf8.RuneCountInString(text) < int(want.(float64)) {
				add("is shorter than %v", want)
			}
		case "maxLength":
			if utf8.RuneCountInString(text) > int(want.(float64)) {
				add("is longer than %v", want)
			}
		case "pattern":
			if !regexp.MustCompile(want.(string)).MatchString(text) {
				add("does not match %s", want)
			}
		case "maxItems":
			if list, _ := value.([]any); len(list) > int(want.(float64)) {
				add("has more than %v items", want)
			}
		case "items":
			list, _ := value.([]any)
			for _, item := range list {
				problems = append(problems, violations(want, item)...)
			}
		case "allOf":
			for _, part := range want.([]any) {
				problems = append(problems, violations(part, value)...)
			}
		case "required":
			for _, name := range want.([]any) {
				if _, ok := o[name.(string)]; !ok {
					add("lacks %s", name)
				}
			}
		case "properties":
			for name, part := range o {
				if property := want.(object)[name]; property != nil {
					problems = append(problems, violations(property, part)...)
				}
			}
		case "additionalProperties":
			for name := range o {
				if fields(schema, "properties")[name] == nil {
					add("has the field %s", name)
				}
			}
		default:
			add("cannot be checked: keyword %s", keyword)
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
	case bool:
		return "boolean"
	}
	return "null"
}

// TestMain checks at the end of a complete run that every status and error code
// that is described was met.
func TestMain(m *testing.M) {
	flag.Parse()
	status := m.Run()
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

func neverSeen() (never []string) {
	for name, operation := range describedOperations() {
		for status := range fields(operation, "responses") {
			response := fields(operation, "responses", status)
			examples := fields(response, "content", "application/json", "examples")
			codes := slices.Collect(maps.Keys(examples))
			if status < "400" {
				codes = []string{""}
			}
			for _, code := range codes {
				if a := strings.TrimSpace(name + " " + status + " " + code); !seen.responses[a] {
					never = append(never, a)
				}
			}
		}
	}
	return never
}

func TestTheDescriptionIsServedWithoutAKey(t *testing.T) {
	s := openShop(t)
	get := s.get("/openapi.json", noKey).is(200).has("X-RateLimit-Limit:")
	get.has("Content-Type: application/json")
	if get.body != webFile("openapi.json") {
		t.Error("what is served is not web/openapi.json")
	}
	head := s.call("HEAD", "/openapi.json", noKey).is(200)
	head.has(fmt.Sprint("Content-Length: ", len(get.body)))
	s.get("/openapi.json", noKey, "If-None-Match: "+get.header.Get("ETag")).is(304)
	s.call("POST", "/openapi.json", noKey).is(405).has("Allow: GET, HEAD")
}

func TestTheDescriptionNamesTheServers(t *testing.T) {
	const production, staging = "https://pets.example/v1", "https://staging.example/v1"
	for _, test := range []struct {
		set  settings
		want string
	}{
		{settings{}, "/v1 This instance"},
		{settings{baseURL: production}, production + " Production"},
		{settings{baseURL: production, stagingURL: staging},
			production + " Production, " + staging + " Staging"},
		{settings{stagingURL: staging}, "/v1 This instance, " + staging + " Staging"},
		{settings{baseURL: staging, staging: true}, staging + " Staging"},
		{settings{baseURL: staging, stagingURL: staging, staging: true}, staging + " Staging"},
	} {
		var doc struct {
			Servers []struct{ URL, Description string }
			Info    struct{ Version string }
		}
		if err := json.Unmarshal([]byte(describe(test.set)), &doc); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, server := range doc.Servers {
			got = append(got, server.URL+" "+server.Description)
		}
		if strings.Join(got, ", ") != test.want || doc.Info.Version != "1.0.0" {
			t.Errorf("%+v: servers %v, version %s", test.set, got, doc.Info.Version)
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
	if slices.Sort(want); !slices.Equal(served, want) {
		t.Errorf("served\n%s\ndescribed\n%s", strings.Join(served, "\n"), strings.Join(want, "\n"))
	}
	for name, operation := range describedOperations() {
		deprecated := field(operation, "deprecated") == true
		if deprecated != (name == "GET /pets/{petId}") {
			t.Errorf("%s is described as deprecated: %v", name, deprecated)
		}
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
		if !strings.Contains(api, fmt.Sprintf("| `%s` | %d |", code, status)) {
			t.Errorf("docs/api.md lacks the code %s with %d", code, status)
		}
	}
	if len(codes) != len(statusOfCode) {
		t.Errorf("web/openapi.json has the codes %v", codes)
	}
}

// rulesOf is a schema, header or parameter as JSON, without what it says to people.
func rulesOf(part any) string {
	text, _ := json.Marshal(withoutText(part))
	return string(text)
}

func withoutText(part any) any {
	o, isObject := part.(object)
	if !isObject {
		return part
	}
	rules := object{}
	for keyword, value := range o {
		switch keyword {
		case "description", "example", "pattern", "in", "name":
		default:
			rules[keyword] = withoutText(value)
		}
	}
	return rules
}

// TestTheRulesOfTheDescriptionAreThese: that the service keeps them, on both sides of each bound,
// is tested in handlers_test.go and model_test.go. A rule that is loosened fails here.
func TestTheRulesOfTheDescriptionAreThese(t *testing.T) {
	const optional, required = `{"required":false,"schema":`, `{"required":true,"schema":`
	const text = required + `{"type":"string"}}`
	const natural = `"format":"int64","minimum":0,"type":"integer"`
	const count = required + "{" + natural + "}}"
	const removal = "Thu, 05 Dec 2030 00:00:00 GMT"
	const pets = "#/components/schemas/Pet"
	const status = `{"$ref":"#/components/schemas/PetStatus"}`
	const anyName = `"maxLength":200,"minLength":1,"type":"string"}`
	want := map[string]string{
		"PetStatus":         `{"enum":["available","pending","sold"],"type":"string"}`,
		"Pets":              `{"items":{"$ref":"` + pets + `"},"maxItems":100,"type":"array"}`,
		"Pet.id":            `{"format":"int64","minimum":1,"type":"integer"}`,
		"Pet.name":          "{" + anyName,
		"Pet.categoryId":    `{"format":"int64","type":"integer"}`,
		"Pet.status":        status,
		"NewPet.name":       "{" + anyName,
		"NewPet.categoryId": `{"format":"int64","type":"integer"}`,
		"NewPet.status":     `{"allOf":[` + status + `],"default":"available"}`,
		"Error.message":     `{"minLength":1,"type":"string"}`,
		"Error.status":      `{"maximum":599,"minimum":400,"type":"integer"}`,

		"Pet":    `[id name categoryId]`,
		"NewPet": `[name categoryId]`,
		"Error":  `[code message status]`,

		"limit":           optional + `{"default":20,"maximum":100,"minimum":1,"type":"integer"}}`,
		"status":          optional + status + "}",
		"after":           optional + `{"default":0,` + natural + "}}",
		"If-None-Match":   optional + `{"type":"string"}}`,
		"Idempotency-Key": optional + `{"maxLength":255,"minLength":1,"type":"string"}}`,
		"petId":           required + `{"format":"int64","minimum":1,"type":"integer"}}`,

		"Accept-Encoding":       optional + `{"enum":["identity"],"type":"string"}}`,
		"Allow":                 text,
		"Deprecation":           required + `{"enum":["@1795132800"],"type":"string"}}`,
		"ETag":                  text,
		"Idempotency-Replayed":  optional + `{"enum":["true"],"type":"string"}}`,
		"Location":              optional + `{"format":"uri-reference","type":"string"}}`,
		"NextLink":              optional + `{"type":"string"}}`,
		"RateLimit":             text,
		"RateLimit-Policy":      text,
		"Retry-After":           required + `{"minimum":1,"type":"integer"}}`,
		"SuccessorLink":         text,
		"Sunset":                required + `{"enum":["` + removal + `"],"type":"string"}}`,
		"WWW-Authenticate":      text,
		"X-RateLimit-Limit":     count,
		"X-RateLimit-Remaining": count,
		"X-RateLimit-Reset":     count,
		"X-Request-Id":          text,
	}
	got := map[string]string{}
	for name, schema := range fields(described, "components", "schemas") {
		properties := fields(schema, "properties")
		if properties == nil {
			got[name] = rulesOf(schema)
			continue
		}
		got[name] = fmt.Sprint(field(schema, "required"))
		if field(schema, "additionalProperties") != false {
			t.Errorf("%s may have further fields", name)
		}
		for field, rules := range properties {
			got[name+"."+field] = rulesOf(rules)
		}
	}
	delete(got, "Error.code") // its enum is held against the codes
	for name, header := range fields(described, "components", "headers") {
		got[name] = rulesOf(header)
	}
	for _, operation := range describedOperations() {
		for _, parameter := range field(operation, "parameters").([]any) {
			got[field(parameter, "name").(string)] = rulesOf(parameter)
		}
	}
	for name := range got {
		if got[name] != want[name] {
			t.Errorf("%s is described as %s, want %s", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("described are %v", slices.Sorted(maps.Keys(got)))
	}
}

func TestThePatternOfNamesIsThatOfTheService(t *testing.T) {
	name := fields(described, "components", "schemas", "NewPet", "properties", "name")
	pattern := regexp.MustCompile(name["pattern"].(string))
	for _, value := range []string{
		"a b", "é", "x\u0085", " ", "\t", "a~!", "\u3000", "\u00a0 \u2028", "\ufeff", "a\x7f",
	} {
		if pattern.MatchString(value) != (checkName(value) == "") {
			t.Errorf("of the name %q the service says %q", value, checkName(value))
		}
	}
}

// TestThePatternOfNamesKnowsEveryCharacter, as a name of its own, up to U+FFFF. It lists what shows
// nothing in the version of Unicode that Go has. Specmatic takes no \p{Mn}, and Spectral no range
// above U+FFFF: there the pattern takes what the service refuses.
func TestThePatternOfNamesKnowsEveryCharacter(t *testing.T) {
	name := fields(described, "components", "schemas", "NewPet", "properties", "name")
	pattern := regexp.MustCompile(name["pattern"].(string))
	for c := range rune(utf8.MaxRune + 1) {
		value := string(c)
		takes := checkName(value) == ""
		if c > 0xffff {
			takes = takes || unicode.In(c, unicode.Cf, unicode.Mn)
		}
		if utf8.ValidRune(c) && pattern.MatchString(value) != takes {
			t.Fatalf("of the name %+q the service says %q", value, checkName(value))
		}
	}
	if !strings.Contains(name["description"].(string), "Unicode "+unicode.Version) {
		t.Errorf("the description is not of Unicode %s", unicode.Version)
	}
}

// TestABodyIsTakenAsItIsDescribed: decodeNewPet and NewPet in web/openapi.json agree on which
// fields there are, which may be left out, and which values each takes.
func TestABodyIsTakenAsItIsDescribed(t *testing.T) {
	complete := fields(creation, "examples", "complete", "value")
	decode := func(body object) error {
		text, err := json.Marshal(body)
		must(t, err)
		_, err = decodeNewPet(text)
		return err
	}
	compare := func(field string, body object) (taken bool) {
		t.Helper()
		err := decode(body)
		problems := violations(creation["schema"], body)
		if (err == nil) != (problems == nil) {
			t.Errorf("%s: of %.50v NewPet in web/openapi.json says %q, and decodeNewPet %v",
				field, body, problems, err)
		}
		return err == nil && problems == nil
	}
	if !compare("complete", complete) {
		t.Fatal("the example complete in web/openapi.json must be taken")
	}
	properties := fields(creation, "schema", "properties")
	for name, property := range properties {
		if complete[name] == nil {
			t.Errorf("the example complete in web/openapi.json lacks the field %s", name)
		}
		body := maps.Clone(complete)
		delete(body, name)
		compare(name, body)
		for _, value := range probes(property) {
			body[name] = value
			compare(name, body)
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
			body := maps.Clone(complete)
			body[name] = nil
			if !strings.Contains(fmt.Sprint(decode(body)), "is unknown") {
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
