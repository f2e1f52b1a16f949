package main

// The service and its description, web/openapi.json, held against each other.
//
// Every response that a test in handlers_test.go sees passes through
// describedResponse: its status must be described for the operation, its headers
// must be those described, and its body must have the described schema. The
// tests below go the other way: what is described must be what is served.

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
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
			from = field(described, strings.Split(strings.TrimPrefix(o["$ref"].(string), "#/"), "/")...)
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
	if strings.HasPrefix(path, "/v1/pets/") && strings.Count(path, "/") == 3 && path != "/v1/pets/" {
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
var undescribed = regexp.MustCompile(`^(Date|Connection|Content-Length|Content-Type|Vary|Access-Control-.*)$`)

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
	headers := fields(response, "headers")
	for name, header := range headers {
		values := a.header.Values(name)
		if required, _ := field(header, "required").(bool); len(values) == 0 && required {
			t.Errorf("%s: status %d lacks the described header %s", a.what, a.status, name)
		}
		for _, value := range values {
			var parsed any = value
			if n, err := strconv.ParseFloat(value, 64); err == nil && field(header, "schema", "type") == "integer" {
				parsed = n
			}
			for _, problem := range violations(field(header, "schema"), parsed) {
				t.Errorf("%s: header %s: %s %s", a.what, name, value, problem)
			}
		}
	}
	for name := range a.header {
		known := slices.ContainsFunc(slices.Collect(maps.Keys(headers)), func(h string) bool { return strings.EqualFold(h, name) })
		if !known && !undescribed.MatchString(name) {
			t.Errorf("%s: status %d has the header %s, which is not described", a.what, a.status, name)
		}
	}
	code := describedBody(t, r, a, response)
	seen.Lock()
	defer seen.Unlock()
	seen.responses[strings.TrimSpace(fmt.Sprint(operation, " ", a.status, " ", code))] = true
	if a.status == http.StatusMethodNotAllowed { // belongs to every operation of the path
		for method := range fields(described, "paths", strings.SplitN(operation, " ", 2)[1]) {
			seen.responses[fmt.Sprint(strings.ToUpper(method), strings.TrimPrefix(operation, "GET"), " 405 ", code)] = true
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
	if a.header.Get("Content-Type") != "application/json" || content["schema"] == nil {
		t.Errorf("%s: status %d has Content-Type %q and the schema %v", a.what, a.status, a.header.Get("Content-Type"), content["schema"])
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
			t.Errorf("%s: status %d has the code %s, which is not described", a.what, a.status, code)
		}
	}
	return code
}

// violations reports where a value breaks a schema. It knows the keywords that
// the description uses; any other is a violation, lest it be thought checked.
func violations(schema any, value any) (problems []string) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	text, _ := value.(string)
	number, _ := value.(float64)
	o, _ := value.(object)
	for keyword, want := range fields(schema) {
		switch keyword {
		case "description", "default", "format", "example":
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
			fmt.Fprintln(os.Stderr, "described in web/openapi.json, but no test has met it:", response)
			status = 1
		}
	}
	os.Exit(status)
}

func neverSeen() (never []string) {
	for name, operation := range describedOperations() {
		for status := range fields(operation, "responses") {
			response := fields(operation, "responses", status)
			codes := slices.Sorted(maps.Keys(fields(response, "content", "application/json", "examples")))
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
	get := s.call("GET", "/openapi.json", "Authorization:").is(200).has("Content-Type", "application/json").has("X-RateLimit-Limit", "")
	if get.body != webFile("openapi.json") {
		t.Error("what is served is not web/openapi.json")
	}
	s.call("HEAD", "/openapi.json", "Authorization:").is(200).has("Content-Length", strconv.Itoa(len(webFile("openapi.json"))))
	s.call("GET", "/openapi.json", "Authorization:", "If-None-Match: "+get.header.Get("ETag")).is(304)
	s.call("POST", "/openapi.json", "Authorization:").is(405, CodeMethodNotAllowed).has("Allow", "GET, HEAD")
}

func TestTheDescriptionNamesTheServers(t *testing.T) {
	const production, staging = "https://pets.example/v1", "https://staging.example/v1"
	for _, test := range []struct {
		set  settings
		want string
	}{
		{settings{}, "/v1 This instance"},
		{settings{baseURL: production}, production + " Production"},
		{settings{baseURL: production, stagingURL: staging}, production + " Production, " + staging + " Staging"},
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
	source, err := os.ReadFile("handlers.go")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`"/openapi.json", "openapi", fixed(`, `"/", s.unmatched)`,
		`"/{$}", "page", fixed(`, `"/page.css", "page", fixed(`, `"/page.js", "page", fixed(`, // for people
		// For load balancers, not for clients.
		`"/readyz", "readyz", s.reportReadiness)`}
	for path := range fields(described, "paths") {
		want = append(want, fmt.Sprintf(`"/v1%s", s.handle("other", allow(`, path))
	}
	for name, operation := range describedOperations() {
		want = append(want, fmt.Sprintf(`"%s", s.handle("%s", s.%[2]s)`, strings.Replace(name, " ", " /v1", 1), field(operation, "operationId")))
	}
	var served []string
	for _, match := range regexp.MustCompile(`(?:routes\.Handle(?:Func)?|addPublic)\(("[^"]*", (?:"[a-z]+", )?[a-zA-Z.]+[()]?(?:"[a-zA-Z]+", )?[a-zA-Z.]*[()]?)`).FindAllStringSubmatch(string(source), -1) {
		served = append(served, match[1])
	}
	slices.Sort(served)
	if slices.Sort(want); !slices.Equal(served, want) {
		t.Errorf("served\n%s\ndescribed\n%s", strings.Join(served, "\n"), strings.Join(want, "\n"))
	}
	ids := map[string]bool{}
	for _, operation := range describedOperations() {
		ids[fmt.Sprint(field(operation, "operationId"), " ", field(operation, "deprecated"))] = true
	}
	if want := map[string]bool{"listPets <nil>": true, "createPet <nil>": true, "getPet true": true}; !maps.Equal(ids, want) {
		t.Errorf("operations %v, want %v", ids, want)
	}
}

func TestErrorCodesAreThoseDescribed(t *testing.T) {
	doc := described
	var described, served []string
	for _, code := range field(doc, "components", "schemas", "Error", "properties", "code", "enum").([]any) {
		described = append(described, code.(string))
	}
	for code := range statusOfCode {
		served = append(served, string(code))
	}
	slices.Sort(described)
	slices.Sort(served)
	if !slices.Equal(described, served) {
		t.Errorf("described %v, served %v", described, served)
	}
}

func TestTheParametersOfTheListAreThoseDescribed(t *testing.T) {
	s := openShop(t)
	s.stock(101)
	var names []string
	for _, p := range field(described, "paths", "/pets", "get", "parameters").([]any) {
		if field(p, "in") == "query" {
			names = append(names, field(p, "name").(string))
		}
		if field(p, "required") != false {
			t.Errorf("%v is described as required", field(p, "name"))
		}
	}
	if served := []string{"limit", "status", "after"}; !slices.Equal(names, served) {
		t.Errorf("described %v, served %v", names, served)
	}
	if after := parameterSchemas("/pets", "get")["after"]; field(after, "default") != 0.0 {
		t.Errorf("the default of after is described as %v", field(after, "default"))
	}
	for name, schema := range parameterSchemas("/pets", "get") {
		accepts := func(value any) bool { return s.call("GET", fmt.Sprintf("/v1/pets?%s=%v", name, value)).status == 200 }
		boundaries(t, name, schema, accepts)
	}
	limit := parameterSchemas("/pets", "get")["limit"]
	if got := len(s.call("GET", "/v1/pets").ids()); float64(got) != field(limit, "default") {
		t.Errorf("the default limit is %d, described as %v", got, field(limit, "default"))
	}
	id := parameterSchemas("/pets/{petId}", "get")["petId"]
	boundaries(t, "petId", id, func(value any) bool { return s.call("GET", fmt.Sprintf("/v1/pets/%v", value)).status == 200 })
	key := parameterSchemas("/pets", "post")["Idempotency-Key"]
	boundaries(t, "Idempotency-Key", key, func(value any) bool {
		r, _ := http.NewRequest("POST", s.server.URL+"/v1/pets", strings.NewReader(`{"name":"x","categoryId":1}`))
		r.Header = http.Header{"Authorization": {"Bearer " + s.key}, "Idempotency-Key": {fmt.Sprint(value)}}
		return s.send(r).status == 201
	})
}

func parameterSchemas(path, method string) map[string]any {
	schemas := map[string]any{}
	for _, p := range field(described, "paths", path, method, "parameters").([]any) {
		if name := field(p, "name").(string); name != "If-None-Match" {
			schemas[name] = field(p, "schema")
		}
	}
	return schemas
}

func TestTheFieldsOfANewPetAreThoseDescribed(t *testing.T) {
	s := openShop(t)
	schema := fields(described, "components", "schemas", "NewPet")
	valid := object{"name": "x", "categoryId": 1, "status": "sold"}
	accepts := func(body object) bool {
		text, _ := json.Marshal(body)
		return s.call("POST", "/v1/pets", "="+string(text)).status == 201
	}
	if !slices.Equal(slices.Sorted(maps.Keys(fields(schema, "properties"))), slices.Sorted(maps.Keys(valid))) {
		t.Errorf("the described fields are %v", fields(schema, "properties"))
	}
	if schema["additionalProperties"] != false || accepts(object{"name": "x", "categoryId": 1, "extra": 1}) {
		t.Error("further fields are described or accepted")
	}
	for name := range valid {
		body := maps.Clone(valid)
		delete(body, name)
		if required := slices.Contains(schema["required"].([]any), any(name)); accepts(body) == required {
			t.Errorf("%s is described as required: %v, which is not so", name, required)
		}
		boundaries(t, name, field(schema, "properties", name), func(value any) bool {
			body[name] = value
			return accepts(body)
		})
	}
	var p wirePet
	s.call("POST", "/v1/pets", `={"name":"x","categoryId":1}`).is(201).decode(&p)
	if p.Status != field(schema, "properties", "status", "default") {
		t.Errorf("the default status is %s", p.Status)
	}
}

// boundaries tries a schema's constraints on both sides: what it allows must be
// accepted and what it forbids refused, and it must say what the service does.
func boundaries(t *testing.T, name string, schema any, accepts func(value any) bool) {
	t.Helper()
	check := func(value any, want bool) {
		t.Helper()
		if got := accepts(value); got != want {
			t.Errorf("%s %q: accepted is %v, described is %v", name, fmt.Sprint(value), got, want)
		}
	}
	constrained := fields(schema)
	for _, part := range append([]any{}, constrained["allOf"]) {
		if list, ok := part.([]any); ok {
			constrained = fields(list[0])
		}
	}
	_, hasMinimum := constrained["minimum"]
	_, hasMaximum := constrained["maximum"]
	switch {
	case constrained["enum"] != nil:
		for _, value := range []any{"available", "pending", "sold", "gone", "Sold"} {
			check(value, slices.Contains(constrained["enum"].([]any), value))
		}
	case constrained["type"] == "integer":
		least, most := json.Number("-9223372036854775808"), json.Number("9223372036854775807")
		check(least, !hasMinimum)
		if hasMinimum {
			check(constrained["minimum"], true)
			check(constrained["minimum"].(float64)-1, false)
		}
		if hasMaximum {
			check(constrained["maximum"], true)
			check(constrained["maximum"].(float64)+1, false)
		} else if constrained["format"] != "int64" {
			t.Errorf("%s is described without a maximum", name)
		} else if name != "petId" {
			check(most, true)
		}
		check(json.Number("1.5"), false)
	case constrained["type"] == "string":
		shortest, longest := int(constrained["minLength"].(float64)), int(constrained["maxLength"].(float64))
		check(strings.Repeat("x", shortest), true)
		check(strings.Repeat("x", shortest-1), false)
		check(strings.Repeat("x", longest), true)
		check(strings.Repeat("x", longest+1), false)
		pattern := regexp.MustCompile(constrained["pattern"].(string))
		for _, value := range []string{"a b", "é", "x\u0085", " ", "\t", "a~!", "\u3000", "\u00a0 \u2028", "\ufeff"} {
			check(value, pattern.MatchString(value))
		}
	default:
		t.Errorf("%s is described without a type: %v", name, constrained)
	}
}

func TestTheParametersOfEveryOperationAreThoseItReads(t *testing.T) {
	want := map[string]string{
		"GET /pets":         "query limit, query status, query after, header If-None-Match",
		"POST /pets":        "header Idempotency-Key",
		"GET /pets/{petId}": "path petId, header If-None-Match",
	}
	for name, operation := range describedOperations() {
		var got []string
		for _, p := range field(operation, "parameters").([]any) {
			got = append(got, fmt.Sprint(field(p, "in"), " ", field(p, "name")))
		}
		if strings.Join(got, ", ") != want[name] {
			t.Errorf("%s is described with %v", name, got)
		}
	}
}

// TestTheDescriptionOfResponsesIsTight: a response that the service never gives
// must break the description, or the description has been loosened.
func TestTheDescriptionOfResponsesIsTight(t *testing.T) {
	for name, header := range fields(described, "components", "headers") {
		optional := slices.Contains([]string{"NextLink", "Location", "Idempotency-Replayed", "Accept-Encoding"}, name)
		if required, _ := field(header, "required").(bool); required == optional {
			t.Errorf("the header %s is described as required: %v", name, required)
		}
	}
	header := func(name string) any { return field(described, "components", "headers", name, "schema") }
	schema := func(name string) any { return field(described, "components", "schemas", name) }
	for what, test := range map[string]struct {
		schema any
		value  string
	}{
		"a Pet without an id":          {schema("Pet"), `{"name":"x","categoryId":1}`},
		"a Pet without a name":         {schema("Pet"), `{"id":1,"categoryId":1}`},
		"a Pet without a category":     {schema("Pet"), `{"id":1,"name":"x"}`},
		"a Pet of id 0":                {schema("Pet"), `{"id":0,"name":"x","categoryId":1}`},
		"a Pet of id 1.5":              {schema("Pet"), `{"id":1.5,"name":"x","categoryId":1}`},
		"a Pet with an empty name":     {schema("Pet"), `{"id":1,"name":"","categoryId":1}`},
		"a Pet with a long name":       {schema("Pet"), `{"id":1,"name":"` + strings.Repeat("x", maxName+1) + `","categoryId":1}`},
		"a Pet of another status":      {schema("Pet"), `{"id":1,"name":"x","categoryId":1,"status":"lost"}`},
		"a Pet of category one":        {schema("Pet"), `{"id":1,"name":"x","categoryId":"one"}`},
		"a Pet with a further field":   {schema("Pet"), `{"id":1,"name":"x","categoryId":1,"age":3}`},
		"101 Pets":                     {schema("Pets"), `[` + strings.Repeat(`{"id":1,"name":"x","categoryId":1},`, 100) + `{"id":1,"name":"x","categoryId":1}]`},
		"Pets that are one":            {schema("Pets"), `{"id":1,"name":"x","categoryId":1}`},
		"an Error without a code":      {schema("Error"), `{"message":"x","status":400}`},
		"an Error without a message":   {schema("Error"), `{"code":"not_found","status":400}`},
		"an Error without a status":    {schema("Error"), `{"code":"not_found","message":"x"}`},
		"an Error of another code":     {schema("Error"), `{"code":"oops","message":"x","status":400}`},
		"an Error with an empty text":  {schema("Error"), `{"code":"not_found","message":"","status":404}`},
		"an Error of status 200":       {schema("Error"), `{"code":"not_found","message":"x","status":200}`},
		"an Error with a further one":  {schema("Error"), `{"code":"not_found","message":"x","status":404,"more":1}`},
		"a request id of another form": {header("X-Request-Id"), `"mine"`},
		"another date of deprecation":  {header("Deprecation"), `"@1"`},
		"another date of the removal":  {header("Sunset"), `"Thu, 05 Dec 2031 00:00:00 GMT"`},
		"a replay that is none":        {header("Idempotency-Replayed"), `"false"`},
		"a coding that is refused":     {header("Accept-Encoding"), `"gzip"`},
		"waiting for no time":          {header("Retry-After"), `0`},
		"a limit in words":             {header("X-RateLimit-Limit"), `"sixty"`},
		"less than nothing left":       {header("X-RateLimit-Remaining"), `-1`},
		"a reset in words":             {header("X-RateLimit-Reset"), `"soon"`},
		"an ETag that is a number":     {header("ETag"), `1`},
		"a RateLimit that is a number": {header("RateLimit"), `1`},
		"a policy that is a number":    {header("RateLimit-Policy"), `1`},
		"a next Link that is a number": {header("NextLink"), `1`},
		"a successor that is a number": {header("SuccessorLink"), `1`},
		"a Location that is a number":  {header("Location"), `1`},
		"an Allow that is a number":    {header("Allow"), `1`},
		"a challenge that is a number": {header("WWW-Authenticate"), `1`},
	} {
		var value any
		if err := json.Unmarshal([]byte(test.value), &value); err != nil {
			t.Fatal(err)
		}
		if len(violations(test.schema, value)) == 0 {
			t.Errorf("%s is allowed by the description", what)
		}
	}
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
				if e := fields(example, "value"); e["code"] != nil && (e["code"] != name || float64(statusOfCode[ErrorCode(name)]) != e["status"]) {
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

func TestTheSchemasOfPetsAndErrorsHaveTheFieldsOnTheWire(t *testing.T) {
	for _, test := range []struct {
		schema string
		wire   any
	}{{"Pet", wirePet{}}, {"Error", wireError{}}} {
		var wire []string
		for i := range reflect.TypeOf(test.wire).NumField() {
			wire = append(wire, reflect.TypeOf(test.wire).Field(i).Tag.Get("json"))
		}
		slices.Sort(wire)
		schema := fields(described, "components", "schemas", test.schema)
		if got := slices.Sorted(maps.Keys(fields(schema, "properties"))); !slices.Equal(got, wire) || schema["additionalProperties"] != false {
			t.Errorf("%s is described with %v, and has %v", test.schema, got, wire)
		}
	}
}
