package e2e

// The service and its description, seen by tools from the npm registry: two
// linters, a TypeScript client, and two generators of schemas. node/package.json pins them.

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// nodeModules is where npm put the tools.
func nodeModules(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("node/node_modules")
	noError(t, err)
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
	response, err := http.Get(s.address() + "/openapi.json")
	noError(s.t, err)
	got, err := readAnswer(response)
	noError(s.t, err)
	file := filepath.Join(s.t.TempDir(), "openapi.json")
	noError(s.t, os.WriteFile(file, []byte(got.body), 0o600))
	return file
}

// TestRedocly lints the description, as TestSpectral does. The root's tests hold its servers.
func TestRedocly(t *testing.T) {
	t.Parallel()
	redocly := filepath.Join(nodeModules(t), ".bin", "redocly")
	quiet := []string{"REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true"}
	stdout, all, err := nodeTool(t, t.TempDir(), quiet, redocly, "lint",
		"--extends=recommended", "--format=json", start(t).saveDescription())
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
}

func TestSpectral(t *testing.T) {
	t.Parallel()
	modules := nodeModules(t)
	ruleset := filepath.Join(filepath.Dir(modules), ".spectral.yaml")
	stdout, all, err := nodeTool(t, t.TempDir(), nil, filepath.Join(modules, ".bin", "spectral"),
		"lint", "--ruleset", ruleset, "--fail-severity=hint", "--format=json",
		start(t).saveDescription())
	var findings []any
	if jsonErr := json.NewDecoder(strings.NewReader(stdout)).Decode(&findings); err != nil ||
		jsonErr != nil || len(findings) > 0 {
		t.Errorf("spectral: %v, %v\n%s", err, jsonErr, all)
	}
}

// TestTypeScriptClient makes types of the description, type-checks a caller's
// program that uses them, and runs it.
func TestTypeScriptClient(t *testing.T) {
	modules := nodeModules(t)
	dir := filepath.Dir(modules)
	noError(t, os.RemoveAll(filepath.Join(dir, "generated")))
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

// TestSchemasOfZodCompileAndJudgeNamesAsTheService makes schemas of the description with two
// generators, compiles them, and lets names.ts judge every character up to U+FFFF as a name. The
// service imports the names that the schemas take, and refuses each of the others.
func TestSchemasOfZodCompileAndJudgeNamesAsTheService(t *testing.T) {
	modules := nodeModules(t)
	dir := filepath.Dir(modules)
	noError(t, os.MkdirAll(filepath.Join(dir, "generated"), 0o700))
	s := start(t)
	description := s.saveDescription()
	for _, command := range [][]string{
		{"cp", description, "generated/openapi.json"},
		{modules + "/.bin/openapi-ts", "-i", "./generated/openapi.json", "-o", "generated/hey",
			"-p", "zod", "--silent", "--no-log-file"},
		{modules + "/.bin/openapi-zod-client", "generated/openapi.json", "-o",
			"generated/zodios.ts"},
		{modules + "/.bin/tsc", "-p", "tsconfig.names.json"},
		{"node", "generated/names.js"},
	} {
		if _, all, err := nodeTool(t, dir, nil, command[0], command[1:]...); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, all)
		}
	}
	s.command("pet", "import", "-db", s.db, filepath.Join(dir, "generated/taken.jsonl"))
	refused, err := os.ReadFile(filepath.Join(dir, "generated/refused.jsonl"))
	noError(t, err)
	for body := range strings.Lines(string(refused)) {
		got, err := call(s.url, s.key, "POST", "/pets", body, "")
		noError(t, err)
		if got.status != 400 {
			t.Errorf("the schemas refuse %q, and the service answers %d", body, got.status)
		}
	}
}

// addPet adds an animal.
func (s *server) addPet(body string) {
	s.t.Helper()
	mustCall(s.t, s, s.key, "POST", "/pets", body)
}
