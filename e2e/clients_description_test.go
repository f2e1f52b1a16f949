package e2e

// The service and its description, seen by tools from the npm registry: two
// linters, a TypeScript client and Specmatic's contract tests. node/package.json
// pins them; Specmatic needs Java 17 or later besides.

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// nodeModules is where npm put the tools.
func nodeModules(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("node/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".package-lock.json")); err != nil {
		t.Fatal("run npm ci in e2e/node")
	}
	return dir
}

// nodeTool runs a command, which must end within five minutes, and returns its
// stdout and all it printed. env comes on top of this process's environment.
func nodeTool(t *testing.T, dir string, env []string, name string, args ...string) (stdout,
	all string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	var both logBuffer
	cmd.Stdout = io.MultiWriter(&out, &both)
	cmd.Stderr = &both
	err = cmd.Run()
	return out.String(), both.String(), err
}

// saveDescription fetches the description that the server serves into a file.
func (s *server) saveDescription() string {
	s.t.Helper()
	answer, err := http.Get(s.address() + "/openapi.json")
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		s.t.Fatalf("GET /openapi.json: status %d, %v", answer.StatusCode, err)
	}
	file := filepath.Join(s.t.TempDir(), "openapi.json")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return file
}

// eachDescription runs a test on the description as it is served with and without
// public addresses.
func eachDescription(t *testing.T, test func(t *testing.T, file string)) {
	t.Run("own address", func(t *testing.T) { test(t, start(t).saveDescription()) })
	t.Run("public addresses", func(t *testing.T) {
		test(t, start(t, "-base-url", "https://api.petstore.test/v1", "-staging-url",
			"https://staging.petstore.test/v1").saveDescription())
	})
}

func TestRedocly(t *testing.T) {
	redocly := filepath.Join(nodeModules(t), ".bin", "redocly")
	quiet := []string{"REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true"}
	eachDescription(t, func(t *testing.T, file string) {
		stdout, all, err := nodeTool(t, filepath.Dir(file), quiet, redocly, "lint",
			"--extends=recommended", "--format=json", file)
		var report struct {
			Totals *struct{ Errors, Warnings, Ignored int }
		}
		if jsonErr := json.Unmarshal([]byte(stdout), &report); err != nil || jsonErr != nil ||
			report.Totals == nil {
			t.Fatalf("redocly: %v, %v\n%s", err, jsonErr, all)
		}
		if n := *report.Totals; n.Errors+n.Warnings+n.Ignored != 0 {
			t.Errorf("redocly: %d errors, %d warnings, %d ignored\n%s", n.Errors, n.Warnings,
				n.Ignored, stdout)
		}
	})
}

func TestSpectral(t *testing.T) {
	modules := nodeModules(t)
	spectral := filepath.Join(modules, ".bin", "spectral")
	ruleset := filepath.Join(filepath.Dir(modules), ".spectral.yaml")
	eachDescription(t, func(t *testing.T, file string) {
		stdout, all, err := nodeTool(t, filepath.Dir(file), nil, spectral, "lint", "--ruleset",
			ruleset, "--fail-severity=hint", "--format=json", file)
		var findings []any
		if jsonErr := json.NewDecoder(strings.NewReader(stdout)).Decode(&findings); err != nil ||
			jsonErr != nil || len(findings) > 0 {
			t.Errorf("spectral: %v, %v\n%s", err, jsonErr, all)
		}
	})
}

// TestTypeScriptClient makes types of the description, type-checks a caller's
// program that uses them, and runs it.
func TestTypeScriptClient(t *testing.T) {
	modules := nodeModules(t)
	dir := filepath.Dir(modules)
	if err := os.RemoveAll(filepath.Join(dir, "generated")); err != nil {
		t.Fatal(err)
	}
	s := start(t)
	env := []string{"PETSTORE_URL=" + s.url, "PETSTORE_KEY=" + s.key,
		"PETSTORE_SMALL_KEY=" + s.newKey("-plan", "enterprise", "-per-minute", "2", "-per-day",
			"100")}
	for _, command := range [][]string{
		// Without the option a member with a default counts as required, also
		// in a request.
		{modules + "/.bin/openapi-typescript", s.address() + "/openapi.json",
			"--default-non-nullable=false", "-o", "generated/schema.d.ts"},
		{modules + "/.bin/tsc"},
		{"node", "generated/tour.js"},
	} {
		if _, all, err := nodeTool(t, dir, env, command[0], command[1:]...); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, all)
		}
	}
}

// specmaticExamples are the tests of the answers that a generator cannot
// provoke on its own. 413 and 415 are missing: an example's request must fit the
// schema and have the described type. The TypeScript tour provokes those two.
var specmaticExamples = []struct {
	name, method, path string
	headers            map[string]string
	body               any
	status             int
	answer             any
	code               string
}{
	// specmatic makes it
	{name: "animal", method: "GET", path: "/pets/1", status: 200, answer: map[string]any{"id": 1,
		"name": "Tom", "categoryId": 3}},
	{name: "no animal", method: "GET", path: "/pets/9000000000", status: 404, code: "not_found"},
	{name: "animal unchanged", method: "GET", path: "/pets/1",
		headers: map[string]string{"If-None-Match": "*"}, status: 304},
	{name: "animal without key", method: "GET", path: "/pets/1", headers: specmaticNoKey,
		status: 401, code: "invalid_key"},
	{name: "list unchanged", method: "GET", path: "/pets",
		headers: map[string]string{"If-None-Match": "*"}, status: 304},
	{name: "list without key", method: "GET", path: "/pets", headers: specmaticNoKey, status: 401,
		code: "invalid_key"},
	{name: "create without key", method: "POST", path: "/pets", headers: specmaticNoKey,
		body: specmaticPet, status: 401, code: "invalid_key"},
	// specmatic used it
	{name: "reused", method: "POST", path: "/pets",
		headers: map[string]string{"Idempotency-Key": "specmatic"}, body: specmaticPet, status: 422,
		code: "idempotency_key_reused"},
}

var (
	specmaticNoKey = map[string]string{"Authorization": "Bearer nonsense"}
	specmaticPet   = map[string]any{"name": "Rex", "categoryId": 7}
)

// specmaticOverlay changes the description for the positive tests. Their
// shortest Idempotency-Key is always "!", with another body each time, which is
// rightly 422. Of 16 characters it is random.
const specmaticOverlay = `overlay: 1.0.0
info: {title: Positive tests, version: 1.0.0}
actions:
  - target: $.paths['/pets'].post.parameters[?(@.name=='Idempotency-Key')].schema
    update: {minLength: 16}
`

// TestSpecmatic runs the contract tests that Specmatic generates: requests that
// the description allows, of each shape and at each bound, and requests that it
// does not. They run one after the other because the overlay is for the first.
// On a cluster, where TestContract asks for as much in less time, they run under
// SOAK only.
func TestSpecmatic(t *testing.T) {
	t.Parallel()
	if os.Getenv("SOAK") == "" {
		testSpecmatic(t, engine{})
		return
	}
	onBothEngines(t, testSpecmatic)
}

func testSpecmatic(t *testing.T, on engine) {
	t.Run("positive", func(t *testing.T) {
		overlay := filepath.Join(t.TempDir(), "overlay.yaml")
		if err := os.WriteFile(overlay, []byte(specmaticOverlay), 0o600); err != nil {
			t.Fatal(err)
		}
		answers := specmatic(t, on, "positiveOnly", 250, "--examples", "examples", "--overlay-file",
			overlay)
		for _, want := range []string{
			"GET /v1/pets 200", "GET /v1/pets 304", "GET /v1/pets 401",
			"POST /v1/pets 201", "POST /v1/pets 401", "POST /v1/pets 422",
			"GET /v1/pets/{petId} 200", "GET /v1/pets/{petId} 304", "GET /v1/pets/{petId} 401",
			"GET /v1/pets/{petId} 404",
		} {
			if answers[want] == 0 {
				t.Errorf("no test got %s", want)
			}
		}
	})
	t.Run("negative", func(t *testing.T) {
		// The filter leaves out the positive tests, which would run without the overlay.
		answers := specmatic(t, on, "all", 100, "--filter", "STATUS>='400'")
		for _, want := range []string{"GET /v1/pets 400", "POST /v1/pets 400",
			"GET /v1/pets/{petId} 404"} {
			if answers[want] == 0 {
				t.Errorf("no test got %s", want)
			}
		}
	})
}

// specmatic runs contract tests against a new server, checks that there were
// enough and all passed, and counts the server's answers by operation and status,
// from its log.
func specmatic(t *testing.T, on engine, resiliency string, atLeast int,
	args ...string) map[string]int {
	// what .bin/specmatic runs, in a shell
	jar := filepath.Join(nodeModules(t), "specmatic", "specmatic.jar")
	if _, err := exec.LookPath("java"); err != nil {
		t.Fatal("install Java 17 or later (Debian: default-jre-headless)")
	}
	s := on.start(t, "-log-level", "debug")
	for _, idempotencyKey := range []string{"", "specmatic"} {
		s.addPet(idempotencyKey, `{"name":"Tom","categoryId":3}`)
	}
	description := s.saveDescription()
	dir := filepath.Dir(description) // where Specmatic leaves its reports
	prepareForSpecmatic(t, description, filepath.Join(dir, "examples"))
	config := filepath.Join(dir, "specmatic.yaml")
	writeJSONFile(t, config, map[string]any{ // YAML takes JSON
		"version":   2,
		"contracts": []any{map[string]any{"provides": []string{"openapi.json"}}},
		"test":      map[string]any{"resiliencyTests": map[string]string{"enable": resiliency}},
	})
	env := []string{
		"apiKey=" + s.key, // the name of the security scheme
		"SPECMATIC_DISABLE_TELEMETRY=true",
	}
	_, all, err := nodeTool(t, dir, env, "java",
		append([]string{"-jar", jar, "test", "--config", config,
			"--testBaseURL", s.url, "--timeout", "60", "--junitReportDir", "junit"}, args...)...)
	var report struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Errors   int `xml:"errors,attr"`
		Skipped  int `xml:"skipped,attr"`
		Cases    []struct {
			Name    string  `xml:"name,attr"`
			Failure *string `xml:"failure"`
			Error   *string `xml:"error"`
		} `xml:"testcase"`
	}
	text, readErr := os.ReadFile(filepath.Join(dir, "junit", "TEST-junit-jupiter.xml"))
	if xmlErr := errors.Join(readErr, xml.Unmarshal(text, &report)); xmlErr != nil {
		t.Fatalf("specmatic: %v, %v\n%s", err, xmlErr, all)
	}
	for _, c := range report.Cases {
		for _, reason := range []*string{c.Failure, c.Error} {
			if reason != nil {
				t.Errorf("%s\n%.1000s", c.Name, *reason)
			}
		}
	}
	t.Logf("specmatic: %d tests", report.Tests)
	if err != nil || report.Failures+report.Errors+report.Skipped != 0 || report.Tests < atLeast {
		t.Errorf("specmatic: %v, %d tests (at least %d expected), %d failures, %d errors, %d "+
			"skipped",
			err, report.Tests, atLeast, report.Failures, report.Errors, report.Skipped)
	}
	return s.loggedAnswers(report.Tests)
}

// prepareForSpecmatic rewrites the description so that Specmatic checks the
// headers of answers, and writes specmaticExamples into a directory. Specmatic
// passes over a header behind a $ref, so they are put in place; and it wants
// every required header in an example, which those of OpenAPI cannot hold, so
// these make room for files, with the description's example of each header.
func prepareForSpecmatic(t *testing.T, file, examples string) {
	t.Helper()
	type object = map[string]any
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var description object
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&description); err != nil {
		t.Fatal(err)
	}
	resolve := func(parent object, name string) object {
		child := parent[name].(object)
		if ref, ok := child["$ref"].(string); ok {
			child = description
			for _, step := range strings.Split(ref, "/")[1:] {
				child = child[step].(object)
			}
			parent[name] = child
		}
		return child
	}
	headers := map[string]map[string]string{} // examples, by method, path and status
	for path, item := range description["paths"].(object) {
		for method, operation := range item.(object) {
			responses := operation.(object)["responses"].(object)
			for status := range responses {
				response := resolve(responses, status)
				if content, ok := response["content"].(object); ok {
					delete(content["application/json"].(object), "examples")
				}
				values := map[string]string{}
				all := response["headers"].(object)
				for name := range all {
					header := resolve(all, name)
					if header["required"] == true {
						values[name] = fmt.Sprint(header["example"])
					}
				}
				headers[strings.ToUpper(method)+" "+path+" "+status] = values
			}
		}
	}
	writeJSONFile(t, file, description)

	if err := os.Mkdir(examples, 0o700); err != nil {
		t.Fatal(err)
	}
	for i, e := range specmaticExamples {
		path := e.path
		if strings.HasPrefix(path, "/pets/") {
			path = "/pets/{petId}"
		}
		request := object{"method": e.method, "path": e.path}
		if e.headers != nil {
			request["headers"] = e.headers
		}
		if e.body != nil {
			request["body"] = e.body
		}
		response := object{"status": e.status,
			"headers": headers[e.method+" "+path+" "+strconv.Itoa(e.status)]}
		if e.answer != nil {
			response["body"] = e.answer
		} else if e.status >= 400 {
			response["body"] = object{"code": e.code, "message": "some text", "status": e.status}
		}
		writeJSONFile(t, filepath.Join(examples, strconv.Itoa(i)+".json"),
			object{"name": e.name, "http-request": request, "http-response": response})
	}
}

// addPet adds an animal.
func (s *server) addPet(idempotencyKey, body string) {
	s.t.Helper()
	r, err := http.NewRequest("POST", s.url+"/pets", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", s.bearer())
	if idempotencyKey != "" {
		r.Header.Set("Idempotency-Key", idempotencyKey)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		s.t.Fatalf("POST /v1/pets: status %d", answer.StatusCode)
	}
}

// loggedAnswers counts the answers in the log of a server that ran with -log-level
// debug. A 429 would hide the answer that a test was about, and a 5xx is never
// an answer to a good test.
func (s *server) loggedAnswers(atLeast int) map[string]int {
	s.t.Helper()
	counts := map[string]int{}
	total := 0
	for line := range strings.Lines(s.log.String()) {
		var request struct {
			Msg, Route string
			Status     int
		}
		if json.Unmarshal([]byte(line), &request) != nil || request.Msg != "request" {
			continue
		}
		total++
		if request.Status == http.StatusTooManyRequests || request.Status >= 500 {
			s.t.Errorf("status %d: %s", request.Status, line)
		}
		counts[request.Route+" "+strconv.Itoa(request.Status)]++
	}
	if total < atLeast {
		s.t.Errorf("the server's log has %d requests, which is less than the %d tests", total,
			atLeast)
	}
	return counts
}

func writeJSONFile(t *testing.T, file string, content any) {
	t.Helper()
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	// Specmatic reads JSON as YAML, which takes no bare DEL or C1 control.
	text = yamlSpecial.ReplaceAllFunc(text, func(c []byte) []byte {
		r, _ := utf8.DecodeRune(c)
		return fmt.Appendf(nil, `\u%04x`, r)
	})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

var yamlSpecial = regexp.MustCompile(`[\x7f-\x{9f}]`)
