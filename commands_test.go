package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheShortestBanIsASecond(t *testing.T) {
	var cfg config
	mainMust(t, commandsParse(&cfg, []string{"-ban-for", "1s"}))
	if cfg.banFor != time.Second {
		t.Errorf("a ban lasts %v", cfg.banFor)
	}
}

// commandsFlag is a flag of the server: a good value as parse shows it, another, and bad ones.
type commandsFlag struct {
	good, other string
	shows       string // the good value in the config, as its underlying type is printed
	bad         []string
}

// commandsFlags names every flag. One that is missing here fails TestEveryFlag.
var commandsFlags = map[string]commandsFlag{
	"addr":             {"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1", []string{"8080", "localhost", "a:b:c", "localhost:99999", "localhost:-1", "localhost:nosuchport"}},
	"db":               {"a.db", "b.db", "a.db", nil},
	"base-url":         {"https://a.example/v1", "https://b.example/v1", "https://a.example/v1", []string{"a.example/v1", "/v1", "https://a.example", "https://a.example/v1/", "https://a.example/v2", "ftp://a.example/v1", "https:///v1", "https://a.example/?x=/v1", "https://a.example/#/v1", "https://u:p@a.example/v1", "https://a.example/%zz/v1", "http://a.example:x/v1"}},
	"staging":          {"true", "false", "true", []string{"perhaps", "2"}},
	"ban-for":          {"7s", "8s", "7000000000", []string{"10", "soon", "-1s", "10 m", "1ms"}},
	"cache":            {"2KiB", "0", "2048", []string{"x", "-1", "+1", "1.5MiB", "16 MiB", "16MB", "16mib", "MiB", "8589934592", "1TiB", "1KiBKiB"}},
	"client-ip-header": {"X-A", "X-B", "X-A", []string{"X Forwarded-For", "X-Real-IP:", "Ü"}},
	"cors-origin": {"https://a.example,http://b.example:8080", "*", "[https://a.example http://b.example:8080]", []string{"a.example", "https://A.example", "https://a.example/", "https://a.example/x", "https://", "null", "https://a.example,", "https://u@a.example", "https://a.example?x",
		"https://a.example:443", "http://a.example:80", "https://[::1]:443", "https://*.example", "https://a*.example", "https://zoë.example", "https://a.example:"}},
	"tls-cert":           {"a.pem", "b.pem", "a.pem", nil},
	"tls-key":            {"a.key", "b.key", "a.key", nil},
	"log":                {"text", "json", "text", []string{"xml", "Text"}},
	"log-level":          {"DEBUG", "ERROR", "-4", []string{"loud", "1"}},
	"debug-addr":         {"127.0.0.1:1", "[::1]:2", "127.0.0.1:1", []string{"6060", "a:b:c", "localhost:99999"}},
	"debug-allow-remote": {"true", "false", "true", []string{"perhaps"}},
	"staging-url":        {"https://a.example/v1", "https://b.example/v1", "https://a.example/v1", []string{"a.example", "https://a.example", "ftp://a.example/v1"}},
}

func TestEveryFlag(t *testing.T) {
	var names []string
	commandsVerb("serve").newInvocation(nil).VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	if len(names) < 14 {
		t.Errorf("the flags are only %v", names)
	}
	for _, name := range names {
		c, known := commandsFlags[name]
		if !known {
			t.Errorf("-%s is not tested", name)
			continue
		}
		variable := "PETSTORE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		// A config shows the value of one flag by its difference from the default one.
		parsed := func(t *testing.T, environ []string, args ...string) string {
			t.Helper()
			var cfg, base config
			mainMust(t, commandsParse(&base, nil))
			if err := commandsParse(&cfg, args, environ...); err != nil {
				t.Fatalf("%v: %v", args, err)
			}
			return commandsDifference(base, cfg)
		}
		t.Run("-"+name+" is heeded", func(t *testing.T) {
			if got := parsed(t, nil, "-"+name+"="+c.good); got != c.shows {
				t.Errorf("the flag gives %s, want %s", got, c.shows)
			}
		})
		t.Run(variable+" is its twin", func(t *testing.T) {
			if got := parsed(t, []string{variable + "=" + c.good}); got != c.shows {
				t.Errorf("the variable gives %s, want %s", got, c.shows)
			}
		})
		t.Run("-"+name+" wins over "+variable, func(t *testing.T) {
			if got := parsed(t, []string{variable + "=" + c.other}, "-"+name+"="+c.good); got != c.shows {
				t.Errorf("both give %s, want %s", got, c.shows)
			}
		})
		for _, bad := range c.bad {
			t.Run(fmt.Sprintf("-%s refuses %q", name, bad), func(t *testing.T) {
				out, log, err := mainRun(t, nil, "-db", mainDB(t), "-"+name+"="+bad)
				mainOneLine(t, err, true, "-"+name, bad)
				_, _, err = mainRun(t, map[string]string{variable: bad}, "-db", mainDB(t))
				mainOneLine(t, err, true, variable, bad)
				if out+log != "" {
					t.Errorf("beside the error there is %q %q", out, log)
				}
			})
		}
	}
}

// commandsInvocation is a run of a verb that has read its arguments and its environment.
func commandsInvocation(verb string, args []string, environ ...string) (*invocation, error) {
	v := commandsVerb(verb)
	c := v.newInvocation(&process{environ: commandsVariables(environ)})
	if err := c.parse(args); err != nil {
		return c, err
	}
	return c, c.readEnvironment(v.onlyDatabase)
}

// commandsVariables are those of entries such as NAME=value.
func commandsVariables(environ []string) map[string]string {
	variables := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		variables[name] = value
	}
	return variables
}

// commandsParse parses flags of the service.
func commandsParse(into *config, args []string, environ ...string) error {
	c, err := commandsInvocation("serve", args, environ...)
	*into = c.config
	return err
}

// commandsVerb is the verb of a name.
func commandsVerb(name string) *command {
	verbs := allVerbs(nil)
	return &verbs[slices.IndexFunc(verbs, func(v command) bool { return v.name == name })]
}

// commandsDifference prints the fields of b that differ from those of a.
func commandsDifference(a, b config) string {
	var texts []string
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for _, field := range reflect.VisibleFields(va.Type()) {
		if x, y := fmt.Sprint(va.FieldByIndex(field.Index)), fmt.Sprint(vb.FieldByIndex(field.Index)); x != y && !field.Anonymous {
			texts = append(texts, y)
		}
	}
	return strings.Join(texts, " ")
}

func TestDefaults(t *testing.T) {
	var cfg config
	if err := commandsParse(&cfg, nil); err != nil {
		t.Fatal(err)
	}
	if cfg.addr != "localhost:8080" || cfg.db != "petstore.db" || cfg.banFor != 10*time.Minute || cfg.staging || cfg.baseURL != "" ||
		len(cfg.corsOrigins) != 0 || cfg.clientIPHeader != "" || cfg.logFormat != "auto" || cfg.logLevel != slog.LevelInfo {
		t.Errorf("the defaults are %+v", cfg)
	}
}

// TestOrdinaryOriginsAreKept: a browser leaves out only the default port of the scheme.
func TestOrdinaryOriginsAreKept(t *testing.T) {
	for _, origin := range []string{"https://a.example", "http://a.example:443", "https://a.example:80", "https://a.example:8443", "https://a.example:4430",
		"http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:8080", "http://[fe80::80]", "https://xn--zo-hja.example", "https://my-shop_1.example", "*"} {
		if !isOrigin(origin) {
			t.Errorf("the origin %s is refused", origin)
		}
	}
}

// TestOtherVariablesDoNotCount: an environment is full of them.
func TestOtherVariablesDoNotCount(t *testing.T) {
	var cfg, base config
	mainMust(t, commandsParse(&base, nil))
	environ := []string{"ADDR=localhost:1", "XPETSTORE_ADDR=localhost:1", "PETSTOREADDR=localhost:1", "PETSTORE_ADDRESS=localhost:1", "PETSTORE_=x",
		"PETSTORE_COLOUR=gold", "PETSTORE_ADDR=", "PETSTORE_STAGING", "=C:=C:\\", ""}
	if err := commandsParse(&cfg, nil, environ...); err != nil || commandsDifference(base, cfg) != "" {
		t.Errorf("they have set %s, %v", commandsDifference(base, cfg), err)
	}
	if err := commandsParse(&cfg, nil, "PETSTORE_TLS_CERT=a=b.pem"); err != nil || cfg.tlsCert != "a=b.pem" {
		t.Errorf("a value with a = in it is read as %q, %v", cfg.tlsCert, err)
	}
}

func TestACORSOriginMayBeRepeated(t *testing.T) {
	var cfg config
	err := commandsParse(&cfg, []string{"-cors-origin", "https://a.example", "-cors-origin", "https://b.example,*"})
	if err != nil || !slices.Equal(cfg.corsOrigins, []string{"https://a.example", "https://b.example", "*"}) {
		t.Errorf("the origins are %q, %v", cfg.corsOrigins, err)
	}
}

func TestMistakesOnTheCommandLine(t *testing.T) {
	const all = "serve, key create, key list, key show, key usage, key set, key rotate, key revoke, key unban, pet import, pet export, pet set, pet delete, backup, restore, version; "
	const ofKeys = "key create, key list, key show, key usage, key set, key rotate, key revoke, key unban; "
	db := mainDB(t)
	for what, c := range map[string]struct {
		args  []string
		env   map[string]string
		words []string
	}{
		"an unknown command":               {args: []string{"start"}, words: []string{`"start"; there are ` + all, "petstore without a command serves"}},
		"a command with a slip":            {args: []string{"bakup", "x"}, words: []string{`"bakup x"; there are ` + all}},
		"an unknown flag":                  {args: []string{"-port", "80"}, words: []string{"-port; see petstore serve -h"}},
		"a flag with a slip":               {args: []string{"-staging", "-adr=localhost:80"}, words: []string{"-adr; see petstore serve -h"}},
		"a debug address for everybody":    {args: []string{"-db", db, "-debug-addr", ":6060"}, words: []string{":6060", "-debug-allow-remote"}},
		"a debug address on a network":     {args: []string{"-db", db, "-debug-addr", "10.0.0.1:6060"}, words: []string{"10.0.0.1:6060", "-debug-allow-remote"}},
		"a debug address with a name":      {args: []string{"-db", db, "-debug-addr", "example.com:6060"}, words: []string{"-debug-allow-remote"}},
		"an argument after the flags":      {args: []string{"-db", db, "now"}, words: []string{`"now"`}},
		"a flag without its value":         {args: []string{"-db"}, words: []string{"-db"}},
		"an empty -db":                     {args: []string{"-db="}, words: []string{"-db"}},
		"a certificate without its key":    {args: []string{"-db", db, "-tls-cert", "a.pem"}, words: []string{"-tls-cert", "-tls-key"}},
		"a key without its certificate":    {args: []string{"-db", db, "-tls-key", "a.key"}, words: []string{"-tls-cert", "-tls-key"}},
		"the same by the environment":      {env: map[string]string{"PETSTORE_DB": db, "PETSTORE_TLS_KEY": "a.key"}, words: []string{"-tls-cert", "-tls-key"}},
		"key without a verb":               {args: []string{"key"}, words: []string{`"key"; there are ` + ofKeys}},
		"key with an unknown verb":         {args: []string{"key", "make"}, words: []string{`"key make"; there are ` + ofKeys}},
		"key with a slip in the verb":      {args: []string{"key", "rovoke", "1"}, words: []string{`"key rovoke"; there are ` + ofKeys}},
		"pet without a verb":               {args: []string{"pet"}, words: []string{`"pet"; there are pet import, pet export, pet set, pet delete; `}},
		"a group with a flag":              {args: []string{"key", "-json"}, words: []string{`"key -json"; there are ` + ofKeys}},
		"an argument before a flag":        {args: []string{"key", "revoke", "1", "-name", "x"}, words: []string{"-name; see petstore key revoke -h"}},
		"two arguments around a flag":      {args: []string{"key", "set", "-db", db, "1", "-name", "x", "2"}, words: []string{`unexpected argument "2"; see petstore key set -h`}},
		"what looks like a flag, after --": {args: []string{"key", "set", "-db", db, "-name", "x", "--", "1", "-plan"}, words: []string{`unexpected argument "-plan"`}},
		"version with an argument":         {args: []string{"--version", "x"}, words: []string{`unexpected argument "x"; see petstore version -h`}},
		"a flag of a key with a slip":      {args: []string{"key", "create", "-pan", "pro"}, words: []string{"-pan; see petstore key create -h"}},
		"backup without a file":            {args: []string{"backup", "-db", db}, words: []string{"petstore backup needs FILE; see petstore backup -h"}},
		"backup with two files":            {args: []string{"backup", "-db", db, "a", "b"}, words: []string{`unexpected argument "b"; see petstore backup -h`}},
		"backup with an unknown flag":      {args: []string{"backup", "-to", "a"}, words: []string{"-to; see petstore backup -h"}},
		"import without a file":            {args: []string{"pet", "import", "-db", db}, words: []string{"petstore pet import needs FILE"}},
		"import of two files":              {args: []string{"pet", "import", "-db", db, "a", "b"}, words: []string{`unexpected argument "b"`}},
		"export to two files":              {args: []string{"pet", "export", "-db", db, "a", "b"}, words: []string{`unexpected argument "b"`}},
		"export of an unknown status":      {args: []string{"pet", "export", "-db", db, "-status", "Sold"}, words: []string{"-status", `"Sold"`, "available, pending or sold"}},
		"a pet without an id":              {args: []string{"pet", "delete", "-db", db}, words: []string{"petstore pet delete needs ID"}},
		"pet set without a change":         {args: []string{"pet", "set", "-db", mainMade(t), "1"}, words: []string{"petstore pet set needs a flag that says what to change; see petstore pet set -h"}},
		"pet set of an unknown status":     {args: []string{"pet", "set", "-db", db, "-status", "", "1"}, words: []string{"-status", "available, pending or sold"}},
		"pet set of no category":           {args: []string{"pet", "set", "-db", db, "-category", "", "1"}, words: []string{"-category"}},
		"pet set of a fraction":            {args: []string{"pet", "set", "-db", db, "-category", "1.5", "1"}, words: []string{"-category", "1.5"}},
		"a key's name that turns text":     {args: []string{"key", "create", "-db", db, "-name", "shop \u202efront"}, words: []string{"-name", "it must not hold", "direction"}},
		"another name that turns text":     {args: []string{"key", "set", "-db", db, "-name", "\u2066shop\u2069", "1"}, words: []string{"-name", "it must not hold", "direction"}},
		"pet set of an empty name":         {args: []string{"pet", "set", "-db", db, "-name", "", "1"}, words: []string{"-name", "it must not be blank"}},
		"pet set of a long name":           {args: []string{"pet", "set", "-db", db, "-name", strings.Repeat("x", 201), "1"}, words: []string{"-name", "it must have at most 200 characters"}},
		"restore without a copy":           {args: []string{"restore", "-db", db}, words: []string{"petstore restore needs COPY; see petstore restore -h"}},
		"restore with two copies":          {args: []string{"restore", "-db", db, "a", "b"}, words: []string{`unexpected argument "b"; see petstore restore -h`}},
		"restore with an unknown flag":     {args: []string{"restore", "-skip", "1", "a"}, words: []string{"-skip; see petstore restore -h"}},
		"skipping less than no ids":        {args: []string{"restore", "-db", db, "-skip-ids", "-1", "a"}, words: []string{"-skip-ids", "0 to 999999999999999"}},
		"skipping too many ids":            {args: []string{"restore", "-db", db, "-skip-ids", "1000000000000000", "a"}, words: []string{"-skip-ids", "0 to 999999999999999"}},
		"skipping no number of ids":        {args: []string{"restore", "-db", db, "-skip-ids", "many", "a"}, words: []string{"-skip-ids", "many"}},
		"a flag of the server with backup": {args: []string{"backup", "-addr", "localhost:1", "a"}, words: []string{"-addr; see petstore backup -h"}},
	} {
		t.Run(what, func(t *testing.T) {
			out, log, err := mainRun(t, c.env, c.args...)
			mainOneLine(t, err, true, c.words...)
			if out+log != "" {
				t.Errorf("beside the error there is %q %q", out, log)
			}
			if _, err := os.Stat(db); err == nil {
				t.Error("a mistake has made a database")
			}
		})
	}
}

// commandsHelp is what petstore prints for args that ask for help.
func commandsHelp(t *testing.T, args ...string) string {
	t.Helper()
	out, log, err := mainRun(t, map[string]string{"PETSTORE_LOG": "no such format"}, args...)
	if err != nil || log != "" || out == "" {
		t.Fatalf("petstore %v: %q, %v", args, log, err)
	}
	for line := range strings.Lines(out) {
		if len(strings.TrimSuffix(line, "\n")) > 90 {
			t.Errorf("petstore %v: too long for a terminal: %s", args, line)
		}
	}
	return out
}

func TestHelpNamesEveryVerb(t *testing.T) {
	first := commandsHelp(t, "help")
	if lines := strings.Count(first, "\n"); lines > 25 {
		t.Errorf("help has %d lines", lines)
	}
	for _, cmd := range allVerbs(nil) {
		if !regexp.MustCompile(`(?m)^  petstore ` + cmd.name + ` +[a-z]\S+ `).MatchString(first) {
			t.Errorf("help does not say what petstore %s does", cmd.name)
		}
	}
	for _, args := range [][]string{{"-h"}, {"-help"}, {"--help"}, {"help", "-h"}, {"help", "help"}, {"-h", "-db", "x"}} {
		if commandsHelp(t, args...) != first {
			t.Errorf("petstore %v says something else", args)
		}
	}
	_, _, err := mainRun(t, nil, "help", "frobnicate")
	mainOneLine(t, err, true, `no command "frobnicate";`)
	_, _, err = mainRun(t, nil, "help", "key", "make")
	mainOneLine(t, err, true, `no command "key make"; there are key create,`)
}

// TestKeyAndPetListTheirVerbs and no others, when they are asked for help.
func TestKeyAndPetListTheirVerbs(t *testing.T) {
	for group, other := range map[string]string{"key": "pet", "pet": "key"} {
		first := commandsHelp(t, "help", group)
		for _, args := range [][]string{{group, "-h"}, {group, "help"}, {group, "--help"}} {
			if commandsHelp(t, args...) != first {
				t.Errorf("petstore %v says something else", args)
			}
		}
		for _, verb := range allVerbs(nil) {
			isOne := strings.HasPrefix(verb.name, group+" ")
			if isOne != strings.Contains(first, "\n  petstore "+verb.name) || strings.Contains(first, "petstore "+other) {
				t.Errorf("petstore help %s says\n%s", group, first)
			}
		}
	}
}

// TestHelpExplainsEveryVerb: what it does, an example that can be parsed, every flag with its default, and the exit status.
func TestHelpExplainsEveryVerb(t *testing.T) {
	for _, verb := range allVerbs(nil) {
		words := strings.Fields(verb.name)
		text := commandsHelp(t, append([]string{"help"}, words...)...)
		for _, flag := range []string{"-h", "-help", "--help"} {
			if commandsHelp(t, append(slices.Clone(words), flag)...) != text {
				t.Errorf("petstore %s %s says something else than petstore help %[1]s", verb.name, flag)
			}
		}
		name := strings.TrimSuffix("petstore "+verb.name, " serve")
		if !strings.HasPrefix(text, name) || !strings.Contains(text, "\nExit status: ") {
			t.Errorf("help of %s is\n%s", verb.name, text)
		}
		c, flags := verb.newInvocation(&process{}), 0
		c.VisitAll(func(f *flag.Flag) {
			flags++
			value, _ := flag.UnquoteUsage(f)
			explained := regexp.MustCompile(`\n  -` + f.Name + strings.TrimRight(" "+value, " ") + `\n {4}\t[^\n]*(\n {4}\t[^\n]*)*\n`).FindString(text)
			if explained == "" || value == "value" {
				t.Errorf("help of %s does not explain -%s:\n%s", verb.name, f.Name, text)
			}
			if shown := f.DefValue != "" && f.DefValue != "false"; shown != strings.HasSuffix(explained, " (default "+f.DefValue+")\n") {
				t.Errorf("help of %s does not tell the default of -%s:\n%s", verb.name, f.Name, text)
			}
		})
		tells := regexp.MustCompile(`\n(Each flag|Only -db) has a variable in the environment`).FindStringSubmatch(text)
		if (tells != nil) != (flags > 0) || tells != nil && verb.onlyDatabase != (tells[1] != "Each flag") {
			t.Errorf("help of %s tells of variables %q", verb.name, tells)
		}
		example := regexp.MustCompile(`\nExample: ` + name + `(.*)\n`).FindStringSubmatch(text)
		if verb.name == "version" {
			continue
		}
		if example == nil {
			t.Fatalf("help of %s has no example", verb.name)
		}
		mainMust(t, c.parse(strings.Fields(strings.ReplaceAll(example[1], "shop front", "shop"))))
		mainMust(t, verb.checkArgument(c))
	}
}

// TestFlagsMayFollowTheArgument, and stand on both sides of it.
func TestFlagsMayFollowTheArgument(t *testing.T) {
	k := commandsNew(t)
	k.mint("create")
	for i, line := range []string{"key set -name NAME 1", "key set 1 -name NAME", "key set -expires 1h 1 -name NAME", "key set -name NAME -- 1",
		"key set 1 -name NAME --", "key set 1 -name=NAME"} {
		name := fmt.Sprintf("name-%d", i)
		_, _, err := mainRun(t, map[string]string{"PETSTORE_DB": k.db}, strings.Fields(strings.ReplaceAll(line, "NAME", name))...)
		mainMust(t, err)
		if got := k.show("1"); got.Name != name {
			t.Errorf("%s: the key is %+v", line, got)
		}
	}
	// A flag's value is no argument, nor is what follows -- a flag.
	for line, want := range map[string]string{"-overlap 1h 7": "7", "7 -overlap 1h": "7", "-- -overlap": "-overlap", "-overlap 1h -- -7": "-7", "-": "-"} {
		c, err := commandsInvocation("key rotate", strings.Fields(line))
		if err != nil || c.NArg() != 1 || c.Arg(0) != want {
			t.Errorf("the arguments of %q are %q, %v", line, c.Args(), err)
		}
	}
	if _, err := commandsInvocation("key rotate", []string{"7", "-overlap"}); err == nil {
		t.Error("a flag without its value is taken")
	}
}

func TestVersionNamesTheBuild(t *testing.T) {
	out, log, err := mainRun(t, nil, "version")
	for _, flag := range []string{"-version", "--version"} {
		if same, _, err := mainRun(t, nil, flag); err != nil || same != out {
			t.Errorf("%s is %q, %v", flag, same, err)
		}
	}
	if err != nil || log != "" || !strings.HasPrefix(out, "petstore ") || !strings.Contains(out, runtime.Version()) || strings.Count(out, "\n") != 1 {
		t.Errorf("version is %q, %q, %v", out, log, err)
	}
}

func TestTheLogHasTheFormatAndTheLevelAskedFor(t *testing.T) {
	for what, c := range map[string]struct {
		format string
		level  slog.Level
		want   string // a regular expression for all that is written
	}{
		"text":                               {"text", slog.LevelInfo, `^time=\S+ level=INFO msg=hello key=value\ntime=\S+ level=WARN msg=careful\n$`},
		"json":                               {"json", slog.LevelInfo, `^\{"time":"[^"]+","level":"INFO","msg":"hello","key":"value"\}\n\{.*"WARN","msg":"careful"\}\n$`},
		"auto, which is json elsewhere":      {"auto", slog.LevelInfo, `^\{"time":"[^"]+","level":"INFO","msg":"hello","key":"value"\}\n\{.*\}\n$`},
		"debug, which is more":               {"text", slog.LevelDebug, `(?s)^time=\S+ level=DEBUG msg=details\n.*INFO.*WARN`},
		"warn, which is less":                {"text", slog.LevelWarn, `^time=\S+ level=WARN msg=careful\n$`},
		"error, which is quiet until needed": {"text", slog.LevelError, `^$`},
	} {
		t.Run(what, func(t *testing.T) {
			var out bytes.Buffer
			log := newLogger(&out, c.format, c.level)
			log.Debug("details")
			log.Info("hello", "key", "value")
			log.Warn("careful")
			if !regexp.MustCompile(c.want).MatchString(out.String()) {
				t.Errorf("the log is %q", out.String())
			}
		})
	}
}

func TestTheLogIsTextOnATerminalOnly(t *testing.T) {
	handler := func(w io.Writer, format string) string {
		return fmt.Sprintf("%T", newLogger(w, format, slog.LevelInfo).Handler())
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	mainMust(t, err)
	defer file.Close()
	device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a character device, as a terminal is
	mainMust(t, err)
	defer device.Close()
	for what, got := range map[string][2]string{
		"a file, auto":     {handler(file, "auto"), "*slog.JSONHandler"},
		"a buffer, auto":   {handler(io.Discard, "auto"), "*slog.JSONHandler"},
		"a terminal, auto": {handler(device, "auto"), "*slog.TextHandler"},
		"a terminal, json": {handler(device, "json"), "*slog.JSONHandler"},
		"a file, text":     {handler(file, "text"), "*slog.TextHandler"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %s, want %s", what, got[0], got[1])
		}
	}
}

// commandsKeys runs petstore key on one database.
type commandsKeys struct {
	testing.TB
	db string
}

// commandsNew is a database without a key, and without a file yet.
func commandsNew(t testing.TB) commandsKeys {
	return commandsKeys{t, filepath.Join(t.TempDir(), "pets.db")}
}

// do runs "key VERB", which must succeed, and returns what it printed.
func (k commandsKeys) do(verb string, args ...string) string {
	k.Helper()
	out, log, err := mainRun(k, nil, append([]string{"key", verb, "-db", k.db}, args...)...)
	if err != nil {
		k.Fatalf("key %s %v: %v", verb, args, err)
	}
	if strings.Contains(log, "pet_live_") || strings.Contains(log, "pet_test_") {
		k.Errorf("key %s %v logs a key: %s", verb, args, log)
	}
	return out
}

// mint runs a verb that must print a bare key alone, and returns it.
func (k commandsKeys) mint(verb string, args ...string) string {
	k.Helper()
	out := k.do(verb, args...)
	token, isLine := strings.CutSuffix(out, "\n")
	if !isLine || !authForm.MatchString(token) {
		k.Fatalf("key %s %v prints %q, want a bare key on a line", verb, args, out)
	}
	return token
}

// commandsShown is what show -json prints of a key.
type commandsShown struct {
	ID              int64   `json:"id"`
	Name            string  `json:"name"`
	Plan            string  `json:"plan"`
	LastFour        string  `json:"lastFour"`
	CreatedAt       string  `json:"createdAt"`
	ExpiresAt       *string `json:"expiresAt"`
	RevokedAt       *string `json:"revokedAt"`
	PerMinute       int64   `json:"perMinute"`
	PerDay          int64   `json:"perDay"`
	UsedThisMinute  int64   `json:"usedThisMinute"`
	UsedToday       int64   `json:"usedToday"`
	BannedUntil     *string `json:"bannedUntil"`
	DeprecatedUseAt *string `json:"deprecatedUseAt"`
	LastUsedAt      *string `json:"lastUsedAt"`
	Test            bool    `json:"test"`
	State           string  `json:"state"`
	Succeeds        *int64  `json:"succeeds"`
	SucceededBy     *int64  `json:"succeededBy"`
}

// commandsDeprecatedUse is the statement that notes when a key last used the deprecated operation.
func commandsDeprecatedUse(id int64, when instant) statement {
	return sqlOf("UPDATE api_keys SET deprecated_use_at = ? WHERE id = ?", int64(when), id)
}

func (k commandsKeys) show(id string) (shown commandsShown) {
	k.Helper()
	if err := json.Unmarshal([]byte(k.do("show", "-json", id)), &shown); err != nil {
		k.Fatal(err)
	}
	return shown
}

// write runs statements on the database, as the service does.
func (k commandsKeys) write(statements ...statement) {
	k.Helper()
	s := storeOpen(k, k.db)
	defer s.Close()
	if _, err := s.write(k.Context(), statements...); err != nil {
		k.Fatal(err)
	}
}

// commandsTime reads a time that may be null.
func commandsTime(text *string) string {
	if text == nil {
		return "null"
	}
	return *text
}

// In these tests it is midnight on 1 January 2000 UTC, when synctest's clock begins.
func TestKeyCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		for _, c := range []struct {
			args      []string
			prefix    string
			plan      string
			perMinute int64
			perDay    int64
			expires   string
		}{
			{nil, "pet_live_", "free", 60, 1_000, "null"},
			{[]string{"-plan", "free"}, "pet_live_", "free", 60, 1_000, "null"},
			{[]string{"-plan", "pro"}, "pet_live_", "pro", 300, 10_000, "null"},
			{[]string{"-plan", "business", "-test"}, "pet_test_", "business", 1_000, 100_000, "null"},
			{[]string{"-plan", "enterprise", "-per-minute", "1", "-per-day", "2"}, "pet_live_", "enterprise", 1, 2, "null"},
			{[]string{"-expires", "2160h"}, "pet_live_", "free", 60, 1_000, "2000-03-31T00:00:00Z"},
		} {
			token := k.mint("create", append([]string{"-name", "shop front"}, c.args...)...)
			var keys []commandsShown
			if err := json.Unmarshal([]byte(k.do("list", "-json")), &keys); err != nil {
				t.Fatal(err)
			}
			shown := keys[len(keys)-1]
			want := commandsShown{ID: int64(len(keys)), Name: "shop front", Plan: c.plan, LastFour: token[43:], CreatedAt: "2000-01-01T00:00:00Z",
				ExpiresAt: shown.ExpiresAt, PerMinute: c.perMinute, PerDay: c.perDay, Test: c.prefix == "pet_test_", State: "active"}
			if shown != want || commandsTime(shown.ExpiresAt) != c.expires || !strings.HasPrefix(token, c.prefix) {
				t.Errorf("create %v gave %s… and %+v, expires %s", c.args, token[:9], shown, commandsTime(shown.ExpiresAt))
			}
		}
	})
}

func TestKeyCreateSaysOnStderrWhatItMade(t *testing.T) {
	k := commandsNew(t)
	out, log, err := mainRun(t, nil, "key", "create", "-db", k.db, "-name", "shop front")
	if err != nil || !strings.Contains(log, "shop front") || strings.Contains(log, strings.TrimSpace(out)) {
		t.Errorf("stderr says %q, %v", log, err)
	}
}

// TestKeyCreateSaysInWhichDatabase: in the wrong folder it would make a key that opens nothing.
func TestKeyCreateSaysInWhichDatabase(t *testing.T) {
	t.Chdir(t.TempDir())
	folder, err := os.Getwd()
	mainMust(t, err)
	mainMust(t, os.Symlink("away.db", "link.db"))
	for i, c := range []struct {
		db   string // as the operator names it; "" for the default
		path string
		made bool
	}{
		{"", "petstore.db", true}, {"", "petstore.db", false}, {"petstore.db", "petstore.db", false},
		{"other.db", "other.db", true}, {"other.db", "other.db", false}, {filepath.Join(folder, "third.db"), "third.db", true},
		{"link.db", "link.db", true}, {"link.db", "link.db", false}, {"away.db", "away.db", false},
	} {
		args := []string{"key", "create"}
		if c.db != "" {
			args = append(args, "-db", c.db)
		}
		_, log, err := mainRun(t, nil, args...)
		var line struct {
			Msg, Database string
			NewDatabase   *bool
		}
		mainMust(t, err)
		if err := json.Unmarshal([]byte(log), &line); err != nil {
			t.Fatalf("stderr says %q, %v", log, err)
		}
		if line.Msg != "key created" || line.Database != filepath.Join(folder, c.path) || line.NewDatabase == nil || *line.NewDatabase != c.made {
			t.Errorf("%d: for -db %q stderr says %s", i+1, c.db, log)
		}
	}
}

// commandsFull is a stdout that takes nothing, as one on a full disk or a closed one.
type commandsFull struct{}

func (commandsFull) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestAKeyThatCannotBeShownIsNotStored: nobody would ever know it.
func TestAKeyThatCannotBeShownIsNotStored(t *testing.T) {
	k := commandsNew(t)
	k.mint("create")
	before := k.do("list", "-json")
	unseen := filepath.Join(t.TempDir(), "unseen.db")
	for what, args := range map[string][]string{
		"create":                {"create", "-db", k.db, "-name", "unseen"},
		"rotate":                {"rotate", "-db", k.db, "-overlap", "1h", "1"},
		"create in no database": {"create", "-db", unseen},
	} {
		var log bytes.Buffer
		err := run(t.Context(), append([]string{"key"}, args...), nil, nil, commandsFull{}, &log)
		mainOneLine(t, err, false, "no space left on device", "no key was made")
		if log.Len() > 0 {
			t.Errorf("%s: beside the error stderr says %q", what, &log)
		}
	}
	if after := k.do("list", "-json"); after != before {
		t.Errorf("the keys are %s\nand were %s", after, before)
	}
	if _, err := os.Stat(unseen); err == nil {
		if out := (commandsKeys{t, unseen}).do("list", "-json"); out != "[]\n" {
			t.Errorf("the new database has the keys %s", out)
		}
	}
}

// TestAKeyThatIsShownAndNotStoredIsSaidToOpenNothing: another program holds the lock for too long,
// or the operator stops the command meanwhile.
func TestAKeyThatIsShownAndNotStoredIsSaidToOpenNothing(t *testing.T) {
	k := commandsNew(t)
	k.mint("create")
	before := k.do("list", "-json")
	for what, stopped := range map[string]bool{"the lock is held": false, "the command is stopped": true} {
		for _, args := range [][]string{{"create", "-db", k.db}, {"rotate", "-db", k.db, "1"}} {
			t.Run(what+", "+args[0], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					other := openPool(k.db, 0)
					defer other.Close()
					lock, err := other.Conn(t.Context())
					mainMust(t, err)
					defer lock.Close()
					_, err = lock.ExecContext(t.Context(), "BEGIN IMMEDIATE")
					mainMust(t, err)
					start, takes, words := time.Now(), commandWait, []string{"opens nothing", "database is locked"}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if stopped {
						takes, words = time.Second, []string{"stopped by a signal", "opens nothing"}
						time.AfterFunc(takes, cancel)
					}
					var out, log bytes.Buffer
					err = run(ctx, append([]string{"key"}, args...), nil, nil, &out, &log)
					mainOneLine(t, err, false, words...)
					if took := time.Since(start); took != takes {
						t.Errorf("it takes %v, want %v", took, takes)
					}
					if !authForm.MatchString(strings.TrimSpace(out.String())) || log.Len() > 0 {
						t.Errorf("stdout says %q, stderr %q", &out, &log)
					}
				})
			})
		}
	}
	if after := k.do("list", "-json"); after != before {
		t.Errorf("the keys are %s\nand were %s", after, before)
	}
}

// TestAStagingEnvironmentMakesTestKeys: what the service heeds, key create heeds too.
func TestAStagingEnvironmentMakesTestKeys(t *testing.T) {
	for _, c := range []struct {
		env    map[string]string
		args   []string
		prefix string
	}{
		{nil, nil, "pet_live_"},
		{map[string]string{"PETSTORE_STAGING": "true"}, nil, "pet_test_"},
		{map[string]string{"PETSTORE_STAGING": "1"}, []string{"-plan", "pro"}, "pet_test_"},
		{map[string]string{"PETSTORE_STAGING": "false"}, nil, "pet_live_"},
		{map[string]string{"PETSTORE_STAGING": "0"}, []string{"-test"}, "pet_test_"},
		{map[string]string{"PETSTORE_STAGING": ""}, nil, "pet_live_"},
		{map[string]string{"PETSTORE_STAGING": "true"}, []string{"-test=false"}, "pet_live_"},
		{map[string]string{"PETSTORE_STAGING": "true", "PETSTORE_TEST": "false"}, nil, "pet_live_"},
	} {
		k := commandsNew(t)
		out, log, err := mainRun(t, c.env, append([]string{"key", "create", "-db", k.db}, c.args...)...)
		if err != nil || !strings.HasPrefix(out, c.prefix) || strings.Contains(log, "WARN") {
			t.Errorf("with %v, %v: a %.9s key, %v, %s; want a %s key", c.env, c.args, out, err, log, c.prefix)
		}
	}
	k := commandsNew(t)
	_, _, err := mainRun(t, map[string]string{"PETSTORE_STAGING": "perhaps", "PETSTORE_DB": k.db}, "key", "create") // the service would refuse it too
	mainOneLine(t, err, true, "PETSTORE_STAGING", `"perhaps"`)
	k.mint("create")
	out, _, err := mainRun(t, map[string]string{"PETSTORE_STAGING": "true", "PETSTORE_DB": k.db}, "key", "rotate", "1")
	if err != nil || !strings.HasPrefix(out, "pet_live_") {
		t.Errorf("the successor of a live key is a %.9s key, %v", out, err)
	}
}

// TestUnknownVariablesAreWarnedAbout: one with a slip would be heeded by nobody.
func TestUnknownVariablesAreFound(t *testing.T) {
	unknown := func(environ ...string) string {
		return strings.Join(unknownVariables(commandsVariables(environ), allVerbs(nil)), " ")
	}
	for _, variable := range []string{"PETSTORE_ADDRESS=x", "PETSTORE_=x", "PETSTORE_", "PETSTORE_BASEURL=x", "PETSTORE_SKIP_IDS=5", "PETSTORE_ADR=", "PETSTORE_addr=x",
		"PETSTORE_BASE-URL=x", "PETSTORE_HELP=1"} {
		name, _, _ := strings.Cut(variable, "=")
		if found := unknown("HOME=/", variable, "PETSTORE_DB=a.db"); found != name {
			t.Errorf("for %s there is %q", variable, found)
		}
	}
	if found := unknown("PETSTORE_PROT=2", "PETSTORE_ADR=1"); found != "PETSTORE_ADR PETSTORE_PROT" {
		t.Errorf("for two there is %q", found)
	}
	for name := range commandsFlags {
		if found := unknown("PETSTORE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + "=x"); found != "" {
			t.Errorf("-%s has a twin, but there is %q", name, found)
		}
	}
	if found := unknown("PETSTORE_PLAN=pro", "PETSTORE_PER_MINUTE=1", "PETSTORE_PER_DAY=1", "PETSTORE_NAME=x", "PETSTORE_EXPIRES=1h", "PETSTORE_OVERLAP=1h",
		"PETSTORE_TEST=1", "PETSTORE_JSON=1", "PETSTORESTORE=1", "XPETSTORE_ADR=1", "=C:=C:\\", ""); found != "" {
		t.Errorf("for flags of commands and for what is not ours there is %q", found)
	}
}

// TestEveryCommandWarnsOfUnknownVariables, and so does the service.
func TestEveryCommandWarnsOfUnknownVariables(t *testing.T) {
	k := commandsNew(t)
	k.mint("create")
	env := map[string]string{"PETSTORE_DB": k.db, "PETSTORE_PORT": "80"}
	folder := t.TempDir()
	copied := filepath.Join(folder, "copy.db")
	for _, line := range []string{"key create", "key list", "key show 1", "key set -name x 1", "key rotate 1", "key unban 1", "key revoke 1",
		"backup " + copied, "restore " + copied, "-addr 127.0.0.1:0 -log json"} {
		_, log, err := mainRun(t, env, strings.Fields(line)...)
		if err != nil || strings.Count(log, `"level":"WARN"`) != 1 || !strings.Contains(log, `"variable":"PETSTORE_PORT"}`) {
			t.Errorf("petstore %s: %v, stderr %s", line, err, log)
		}
	}
}

// TestEveryChangeOfAKeyIsLogged, and what changes nothing says so.
func TestEveryChangeOfAKeyIsLogged(t *testing.T) {
	k := commandsNew(t)
	k.mint("create")
	now := instantOf(time.Now())
	k.write(limitsSave(1, &usage{bannedAt: now, bannedUntil: now + dayMillis}))
	for _, c := range []struct{ args, want string }{
		{"set -plan pro 1", `"msg":"key changed","id":1,"plan":"pro","perMinute":300,"perDay":10000}`},
		{"set -name till 1", `"msg":"key changed","id":1,"name":"till"}`},
		{"set -expires 1d 1", `"msg":"key changed","id":1,"expires":86400000000000}`},
		{"set -expires 0 -plan free 1", `"msg":"key changed","id":1,"plan":"free","perMinute":60,"perDay":1000,"expires":0}`},
		{"unban 1", `"msg":"key unbanned","id":1}`},
		{"unban 1", `"msg":"key is not banned","id":1}`},
		{"rotate -overlap 1h 1", `"msg":"key rotated","id":1,"successor":2,"overlap":3600000000000}`},
		{"revoke 1", `"msg":"key revoked","id":1}`},
		{"revoke 1", `"msg":"key was revoked already","id":1,"at":"`},
	} {
		_, log, err := mainRun(t, map[string]string{"PETSTORE_DB": k.db}, append([]string{"key"}, strings.Fields(c.args)...)...)
		if err != nil || strings.Count(log, "\n") != 1 || !strings.Contains(log, c.want) {
			t.Errorf("key %s says %v, %q; want a line with %s", c.args, err, log, c.want)
		}
	}
}

func TestTheLeastLimitsAndTheShortestLifeAreTaken(t *testing.T) {
	k := commandsNew(t)
	k.mint("create", "-plan", "enterprise", "-per-minute", "1", "-per-day", "1", "-expires", "1s")
	if got := k.show("1"); got.PerMinute != 1 || got.PerDay != 1 || got.ExpiresAt == nil {
		t.Errorf("the key is %+v", got)
	}
}

// TestTheGreatestLimitsAreTaken: more cannot be written in the RateLimit fields, and the refusal says how much can.
func TestTheGreatestLimitsAreTaken(t *testing.T) {
	const most = 999_999_999_999_999
	k := commandsNew(t)
	limits := []string{"-plan", "enterprise", "-per-minute", fmt.Sprint(most), "-per-day", fmt.Sprint(most)}
	k.mint("create", limits...)
	k.mint("create")
	k.do("set", append(limits, "2")...)
	for _, id := range []string{"1", "2"} {
		if got := k.show(id); got.PerMinute != most || got.PerDay != most {
			t.Errorf("key %s is %+v", id, got)
		}
	}
	limits[3] = fmt.Sprint(most + 1)
	_, _, err := mainRun(t, nil, append([]string{"key", "create", "-db", k.db}, limits...)...)
	mainOneLine(t, err, true, "-per-minute", "from 1 to 999999999999999")
}

func TestKeyShowAndListAsJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		k.mint("create", "-name", "<shop> & front", "-plan", "pro")
		k.mint("create", "-expires", "48h", "-test")
		k.mint("rotate", "1")
		k.do("set", "-expires", "0", "1")
		k.mint("create", "-expires", "1s")
		now := instantOf(time.Now())
		k.write(
			limitsSave(1, &usage{minute: bucket{used: 7, ends: now + 1000}, day: bucket{used: 70, ends: now + 2000}, bannedAt: now, bannedUntil: now + 600_500}),
			limitsSave(2, &usage{minute: bucket{used: 8, ends: now}, day: bucket{used: 80, ends: now}, bannedAt: now - 9, bannedUntil: now}),
			commandsDeprecatedUse(1, now-1),
		)
		k.do("revoke", "2")
		first := map[string]any{
			"id": 1.0, "name": "<shop> & front", "plan": "pro", "createdAt": "2000-01-01T00:00:00Z", "expiresAt": nil, "revokedAt": nil,
			"perMinute": 300.0, "perDay": 10_000.0, "usedThisMinute": 7.0, "usedToday": 70.0,
			"bannedUntil": "2000-01-01T00:10:00.5Z", "deprecatedUseAt": "1999-12-31T23:59:59.999Z", "lastUsedAt": "1999-12-31T23:59:01Z",
			"test": false, "state": "banned", "succeeds": nil, "succeededBy": 3.0,
		}
		second := map[string]any{ // its windows and its ban are over
			"id": 2.0, "name": "", "plan": "free", "createdAt": "2000-01-01T00:00:00Z", "expiresAt": "2000-01-03T00:00:00Z",
			"revokedAt": "2000-01-01T00:00:00Z", "perMinute": 60.0, "perDay": 1_000.0, "usedThisMinute": 0.0, "usedToday": 0.0,
			"bannedUntil": nil, "deprecatedUseAt": nil, "lastUsedAt": "1999-12-31T23:59:00Z",
			"test": true, "state": "revoked", "succeeds": nil, "succeededBy": nil,
		}
		third := map[string]any{ // it shares the ban and the usage
			"id": 3.0, "name": "<shop> & front", "plan": "pro", "createdAt": "2000-01-01T00:00:00Z", "expiresAt": nil, "revokedAt": nil,
			"perMinute": 300.0, "perDay": 10_000.0, "usedThisMinute": 7.0, "usedToday": 70.0,
			"bannedUntil": "2000-01-01T00:10:00.5Z", "deprecatedUseAt": nil, "lastUsedAt": "1999-12-31T23:59:01Z",
			"test": false, "state": "banned", "succeeds": 1.0, "succeededBy": nil,
		}
		fourth := map[string]any{ // never used
			"id": 4.0, "name": "", "plan": "free", "createdAt": "2000-01-01T00:00:00Z", "expiresAt": "2000-01-01T00:00:01Z", "revokedAt": nil,
			"perMinute": 60.0, "perDay": 1_000.0, "usedThisMinute": 0.0, "usedToday": 0.0,
			"bannedUntil": nil, "deprecatedUseAt": nil, "lastUsedAt": nil,
			"test": false, "state": "active", "succeeds": nil, "succeededBy": nil,
		}
		check := func(how string, got, want map[string]any) {
			t.Helper()
			lastFour, ok := got["lastFour"].(string)
			if !ok || len(lastFour) != 4 {
				t.Errorf("%s: lastFour is %v", how, got["lastFour"])
			}
			delete(got, "lastFour")
			if !maps.Equal(got, want) {
				t.Errorf("%s\n got %v\nwant %v", how, got, want)
			}
		}
		var shown map[string]any
		if err := json.Unmarshal([]byte(k.do("show", "-json", "1")), &shown); err != nil {
			t.Fatal(err)
		}
		check("show", shown, first)
		var list []map[string]any
		if err := json.Unmarshal([]byte(k.do("list", "-json")), &list); err != nil || len(list) != 4 {
			t.Fatalf("list: %v, %v", list, err)
		}
		for i, want := range []map[string]any{first, second, third, fourth} {
			check(fmt.Sprint("list, ", i+1), list[i], want)
		}
		time.Sleep(time.Second)
		if got := k.show("4").State; got != "expired" {
			t.Errorf("a second later the key is %s", got)
		}
	})
}

func TestAListWithoutKeysIsAnEmptyArray(t *testing.T) {
	k := commandsNew(t)
	storeOpen(t, k.db)
	if out := k.do("list", "-json"); out != "[]\n" {
		t.Errorf("it prints %q", out)
	}
	if out := k.do("list"); strings.Count(out, "\n") != 1 {
		t.Errorf("the table is %q, want its heading", out)
	}
}

func TestKeyTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		var tokens []string
		for _, args := range [][]string{{"-name", "active"}, {"-name", "revoked"}, {"-name", "expired", "-expires", "1h"}, {"-name", "banned", "-plan", "pro"}, {"-name", "ending", "-expires", "48h"},
			{"-name", "busy", "-test", "-expires", "361h"}, {"-name", "out"}} {
			tokens = append(tokens, k.mint("create", args...))
		}
		k.do("revoke", "2")
		time.Sleep(time.Hour)
		now := instantOf(time.Now())
		k.write(
			limitsSave(1, &usage{minute: bucket{used: 5, ends: now + 1}, day: bucket{used: 799, ends: now + 1}}),
			limitsSave(6, &usage{minute: bucket{used: 70, ends: now + 1}, day: bucket{used: 800, ends: now + 1}}),
			limitsSave(4, &usage{bannedAt: now, bannedUntil: now + 600_000}),
			limitsSave(7, &usage{bannedAt: now, bannedUntil: now + 2*dayMillis}),
			commandsDeprecatedUse(1, now),
		)
		table := k.do("list")
		lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
		if len(lines) != 8 {
			t.Fatalf("the table is\n%s", table)
		}
		for i, want := range []string{
			"1 live %s free 5/60 799/1000 active; getPet 2000-01-01 active",
			"2 live %s free 0/60 0/1000 revoked revoked",
			"3 live %s free 0/60 0/1000 expired expired",
			"4 live %s pro 0/300 0/10000 banned to 01:10:00Z banned",
			"5 live %s free 0/60 0/1000 active; ends soon, 2000-01-03 ending",
			"6 test %s free 70/60 800/1000 active; ends 2000-01-16; minute 100 %%; day 80 %% busy",
			"7 live %s free 0/60 0/1000 banned to 2000-01-03 01:00:00Z out",
		} {
			want = fmt.Sprintf(want, tokens[i][43:])
			if got := strings.Join(strings.Fields(lines[i+1]), " "); got != want {
				t.Errorf("row %d is %q, want %q", i+1, got, want)
			}
			one := k.do("show", fmt.Sprint(i+1))
			history := "created 2000-01-01 00:00:00Z, never used"
			if i == 0 || i == 5 { // their minute began so long before its end
				history = "created 2000-01-01 00:00:00Z, last used 2000-01-01 00:59Z"
			}
			if strings.Count(one, "\n") != 3 || strings.Join(strings.Fields(one), " ") != strings.Join(strings.Fields(lines[0]), " ")+" "+want+" "+history {
				t.Errorf("show %d prints\n%s", i+1, one)
			}
			for line := range strings.Lines(one) {
				if i != 5 && len(line) > 81 {
					t.Errorf("show %d is wider than a terminal: %q", i+1, line)
				}
			}
		}
	})
}

// commandsDay is the statement that stores a day of a usage, so many days before 1 January 2000.
func commandsDay(usageID, ago, admitted, refused, errors int64) statement {
	return sqlOf("INSERT INTO usage_days (usage_id, day, admitted, refused, errors) VALUES (?, ?, ?, ?, ?)",
		usageID, 10_957-ago, admitted, refused, errors)
}

// commandsUsed has four lines of keys: a quiet one, one that was rotated, one that is refused, and one without use.
func commandsUsed(t *testing.T) commandsKeys {
	k := commandsNew(t)
	k.mint("create", "-name", "<b>quiet</b>")
	k.mint("create", "-name", "before", "-plan", "pro")
	k.mint("create", "-name", "refused", "-plan", "business")
	k.mint("create", "-name", "unused")
	k.mint("rotate", "2") // 5
	k.mint("rotate", "5") // 6
	k.do("set", "-name", "busy", "6")
	k.do("revoke", "1")
	// A key of an earlier version may have a name that turns round what follows it.
	k.write(sqlOf("UPDATE api_keys SET name = ? WHERE id = 3", "\u202erefused"))
	k.write(commandsDay(1, 0, 5, 0, 0), commandsDay(2, 0, 50, 3, 0), commandsDay(2, 2, 1000, 0, 7), commandsDay(2, 29, 1, 0, 0),
		commandsDay(2, 30, 9000, 0, 0), commandsDay(2, 399, 90_000, 1, 2), commandsDay(3, 1, 6, 2100, 0))
	return k
}

func TestKeyUsageAsJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsUsed(t)
		const busy = `{"id":6,"name":"busy","plan":"pro","days":[{"day":"1999-12-03","admitted":1,"refused":0,"errors":0},` +
			`{"day":"1999-12-30","admitted":1000,"refused":0,"errors":7},{"day":"2000-01-01","admitted":50,"refused":3,"errors":0}]}`
		const refused = `{"id":3,"name":"\u202erefused","plan":"business","days":[{"day":"1999-12-31","admitted":6,"refused":2100,"errors":0}]}`
		const quiet = `{"id":1,"name":"<b>quiet</b>","plan":"free","days":[{"day":"2000-01-01","admitted":5,"refused":0,"errors":0}]}`
		const unused = `{"id":4,"name":"unused","plan":"free","days":[]}`
		for line, want := range map[string]string{
			"-json":            "[" + busy + "," + refused + "," + quiet + "," + unused + "]",
			"-json 2":          "[" + busy + "]", // the keys of a line of rotations are one
			"-json 5":          "[" + busy + "]",
			"-json 6":          "[" + busy + "]",
			"-json 4":          "[" + unused + "]",
			"-json -days 1 3":  `[{"id":3,"name":"\u202erefused","plan":"business","days":[]}]`,
			"-json -days 2 3":  "[" + refused + "]",
			"-days=30 -json 1": "[" + quiet + "]",
		} {
			var got bytes.Buffer
			want = strings.ReplaceAll(want, `\u202e`, "\u202e")
			if err := json.Compact(&got, []byte(k.do("usage", strings.Fields(line)...))); err != nil || got.String() != want {
				t.Errorf("usage %s\n got %s, %v\nwant %s", line, &got, err, want)
			}
		}
	})
	k := commandsNew(t)
	storeOpen(t, k.db)
	if out := k.do("usage", "-json"); out != "[]\n" {
		t.Errorf("without keys it prints %q", out)
	}
}

// TestKeyUsageAsATable: in a pipe there are numbers only.
func TestKeyUsageAsATable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsUsed(t)
		for line, want := range map[string]string{
			"": "" +
				"ID   ADMITTED    REFUSED    ERRORS  PLAN      NAME\n" +
				"6        1051          3         7  pro       busy\n" +
				"3           6       2100         0  business  \u202erefused\n" +
				"1           5          0         0  free      <b>quiet</b>\n" +
				"4           0          0         0  free      unused\n",
			"-days 4 2": "" +
				"DAY          ADMITTED    REFUSED    ERRORS  key 6, pro, busy\n" +
				"1999-12-29          0          0         0\n" +
				"1999-12-30       1000          0         7\n" +
				"1999-12-31          0          0         0\n" +
				"2000-01-01         50          3         0\n",
			"-days 1 4": "" +
				"DAY          ADMITTED    REFUSED    ERRORS  key 4, free, unused\n" +
				"2000-01-01          0          0         0\n",
		} {
			if got := k.do("usage", strings.Fields(line)...); got != want {
				t.Errorf("usage %s prints\n%s\nwant\n%s", line, got, want)
			}
		}
		for days, want := range map[string]int{"30": 31, "400": 401} {
			if n := strings.Count(k.do("usage", "-days", days, "4"), "\n"); n != want {
				t.Errorf("%s days are %d lines", days, n)
			}
		}
		if out := k.do("usage", "-days", "400"); !strings.Contains(out, "\n6      100051          4         9  pro ") {
			t.Errorf("400 days are\n%s", out)
		}
	})
}

// TestABarShowsWhatWasAdmittedAndRefused: the longest has 20 cells, and what is little has one.
func TestABarShowsWhatWasAdmittedAndRefused(t *testing.T) {
	if row := useRow("7", dayUse{Admitted: 1_000_000}, 1_000_000, false); row != "7\t  1000000\t        0\t       0" {
		t.Errorf("without a bar the row is %q", row)
	}
	use := &keyUse{}
	for i, day := range [][2]int64{{999, 0}, {500, 500}, {1, 1}, {0, 999}, {0, 0}, {333, 666}, {0, 1}} {
		use.Days = append(use.Days, dayUse{Day: fmt.Sprintf("1970-01-%02d", 11+i), Admitted: day[0], Refused: day[1], Errors: 9})
	}
	var out strings.Builder
	c := &invocation{process: &process{stdout: &out}}
	c.days = 8
	mainMust(t, c.showDays("DAY", use, 10, true))
	rows := strings.Split(out.String(), "\n")[1:]
	for i, want := range []string{
		"1970-01-11        999          0         9  ████████████████████",
		"1970-01-12        500        500         9  ██████████░░░░░░░░░░",
		"1970-01-13          1          1         9  █░",
		"1970-01-14          0        999         9  ░░░░░░░░░░░░░░░░░░░░",
		"1970-01-15          0          0         9",
		"1970-01-16        333        666         9  ███████░░░░░░░░░░░░░░",
		"1970-01-17          0          1         9  ░",
		"1970-01-18          0          0         0",
	} {
		if rows[i] != want {
			t.Errorf("row %d is\n%q, want\n%q", i, rows[i], want)
		}
	}
	bar, _, _ := strings.Cut(useRow("7", dayUse{}, 0, true), "\t ")
	if row := useRow("7", dayUse{Refused: 1}, 1, true); !strings.HasSuffix(row, "  ░░░░░░░░░░░░░░░░░░░░ ") || bar != "7" {
		t.Errorf("the row of a key is %q, and %q without use", row, bar)
	}
}

// commandsHeld counts what a report has read and not written yet.
type commandsHeld struct {
	lines      int
	read, most int // rows since the last write, and the most of them
	longest    int // write, in bytes
}

func (h *commandsHeld) Write(text []byte) (int, error) {
	h.read, h.longest = 0, max(h.longest, len(text))
	h.lines += bytes.Count(text, []byte("\n"))
	return len(text), nil
}

// TestReportsAreWrittenAsTheyAreRead: what they hold in memory does not grow with the database.
func TestReportsAreWrittenAsTheyAreRead(t *testing.T) {
	engines(t, testReportsAreWrittenAsTheyAreRead)
}

func testReportsAreWrittenAsTheyAreRead(t *testing.T, db string) {
	const keys, days = 11_000, 2
	s := storeOpen(t, db)
	_, err := s.write(t.Context(),
		sqlOf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
			INSERT INTO api_keys (digest, last_four, test, name, plan, per_minute, per_day, created_at, lifetime, expires_at, unbanned_at)
			SELECT unhex(format('%064d', i)), 'abcd', 0, 'shop', 'free', 0, 0, 1, 0, 0, 0 FROM n`, int64(keys)),
		sqlOf(`WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ? - 1)
			INSERT INTO usage_days (usage_id, day, admitted, refused, errors) SELECT id, i, id, 1, 1 FROM api_keys, n`, int64(days)))
	mainMust(t, err)
	var held *commandsHeld
	count := func(_ statement, columns []any) {
		if columns != nil {
			held.read++
			held.most = max(held.most, held.read)
		}
	}
	now := instant(days-1) * dayMillis
	for what, report := range map[string]struct {
		run         func(context.Context, *invocation) error
		json        bool
		lines, most int
	}{
		"key list":        {keyList, false, keys + 1, 10_000},
		"key list -json":  {keyList, true, 20*keys + 2, 1},
		"key usage":       {keyUsage, false, keys + 1, 10_000},
		"key usage -json": {keyUsage, true, (7+6*days)*keys + 2, 1 + days},
	} {
		held = &commandsHeld{}
		c := &invocation{process: &process{stdout: held}, now: now, store: newStore(&storeEngine{engine: s.engine, check: count})}
		c.json, c.days = report.json, days
		mainMust(t, report.run(t.Context(), c))
		if held.lines != report.lines || held.most > report.most || held.longest > 1000 {
			t.Errorf("%s writes %d lines, want %d, holds %d rows, want %d, and writes %d bytes at once", what, held.lines, report.lines,
				held.most, report.most, held.longest)
		}
	}
}

func TestKeySet(t *testing.T) {
	k := commandsNew(t)
	k.mint("create", "-name", "shop")
	k.mint("create", "-name", "other", "-plan", "pro")
	for _, c := range []struct {
		args              []string
		plan              string
		perMinute, perDay int64
	}{
		{[]string{"-plan", "business"}, "business", 1_000, 100_000},
		{[]string{"-plan", "enterprise", "-per-minute", "5", "-per-day", "6"}, "enterprise", 5, 6},
		{[]string{"-plan", "free"}, "free", 60, 1_000},
	} {
		if out := k.do("set", append(c.args, "1")...); out != "" {
			t.Errorf("set %v prints %q on stdout", c.args, out)
		}
		if got := k.show("1"); got.Plan != c.plan || got.PerMinute != c.perMinute || got.PerDay != c.perDay || got.Name != "shop" {
			t.Errorf("after set %v the key is %+v", c.args, got)
		}
		if got := k.show("2"); got.Plan != "pro" {
			t.Errorf("set %v has changed the other key: %+v", c.args, got)
		}
	}
}

// TestKeySetChangesWhatItIsToldTo, and leaves the rest.
func TestKeySetChangesWhatItIsToldTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		k.mint("create", "-name", "shop", "-expires", "48h")
		k.mint("create", "-name", "other", "-expires", "48h")
		time.Sleep(time.Hour)
		for _, c := range []struct {
			args                []string
			name, plan, expires string
		}{
			{[]string{"-name", "till"}, "till", "free", "2000-01-03T00:00:00Z"},
			{[]string{"-expires", "3d"}, "till", "free", "2000-01-04T01:00:00Z"},
			{[]string{"-plan", "pro"}, "till", "pro", "2000-01-04T01:00:00Z"},
			{[]string{"-expires", "0"}, "till", "pro", "null"},
			{[]string{"-name", "shop front", "-expires", "10m"}, "shop front", "pro", "2000-01-01T01:10:00Z"},
			{[]string{"-plan", "enterprise", "-per-minute", "5", "-per-day", "6", "-name", "all", "-expires", "90d"}, "all", "enterprise", "2000-03-31T01:00:00Z"},
			{[]string{"-plan", "business", "-expires", "0d"}, "all", "business", "null"},
			{[]string{"-expires", "1s"}, "all", "business", "2000-01-01T01:00:01Z"},
		} {
			if out := k.do("set", append(c.args, "1")...); out != "" {
				t.Errorf("set %v prints %q on stdout", c.args, out)
			}
			if got := k.show("1"); got.Name != c.name || got.Plan != c.plan || commandsTime(got.ExpiresAt) != c.expires {
				t.Errorf("after set %v the key is %+v, expires %s", c.args, got, commandsTime(got.ExpiresAt))
			}
			if got := k.show("2"); got.Name != "other" || got.Plan != "free" || commandsTime(got.ExpiresAt) != "2000-01-03T00:00:00Z" {
				t.Errorf("set %v has changed the other key: %+v", c.args, got)
			}
		}
		// A successor lives as long as its predecessor was last told to.
		k.do("set", "-expires", "2d", "1")
		k.do("set", "-expires", "0", "2")
		time.Sleep(time.Hour)
		k.mint("rotate", "1")
		k.mint("rotate", "2")
		for id, want := range map[string]string{"3": "2000-01-03T02:00:00Z", "4": "null"} {
			if got := commandsTime(k.show(id).ExpiresAt); got != want {
				t.Errorf("the successor %s lives until %s, want %s", id, got, want)
			}
		}
	})
	k := commandsNew(t)
	k.mint("create")
	_, _, err := mainRun(t, nil, "key", "set", "-db", k.db, "1")
	mainOneLine(t, err, true, "petstore key set needs a flag that says what to change; see petstore key set -h")
}

// TestOneLimitOfAnEnterpriseKeyChangesAlone: of another plan's key, and out of range, none does.
func TestOneLimitOfAnEnterpriseKeyChangesAlone(t *testing.T) {
	k := commandsNew(t)
	k.mint("create", "-plan", "enterprise", "-per-minute", "5", "-per-day", "6")
	k.mint("create", "-plan", "pro")
	for _, c := range []struct {
		args              []string
		perMinute, perDay int64
		log               string
	}{
		{[]string{"-per-minute", "7"}, 7, 6, `"msg":"key changed","id":1,"perMinute":7}`},
		{[]string{"-per-day", "80"}, 7, 80, `"msg":"key changed","id":1,"perDay":80}`},
		{[]string{"-per-minute", "9", "-per-day", "90", "-name", "both"}, 9, 90, `"id":1,"perMinute":9,"perDay":90,"name":"both"}`},
	} {
		_, log, err := mainRun(t, nil, slices.Concat([]string{"key", "set", "-db", k.db}, c.args, []string{"1"})...)
		if err != nil || !strings.Contains(log, c.log) {
			t.Errorf("set %v says %v, %s", c.args, err, log)
		}
		if got := k.show("1"); got.Plan != "enterprise" || got.PerMinute != c.perMinute || got.PerDay != c.perDay {
			t.Errorf("after set %v the key is %+v", c.args, got)
		}
	}
	before := k.do("list", "-json")
	_, _, err := mainRun(t, nil, "key", "set", "-db", k.db, "-per-minute", "9", "2")
	mainOneLine(t, err, true, "-per-minute and -per-day go with -plan enterprise only", "key 2 has the plan pro")
	for _, limit := range []string{"0", "-1", "1000000000000000"} {
		for _, name := range []string{"-per-minute", "-per-day"} {
			_, _, err := mainRun(t, nil, "key", "set", "-db", k.db, name, limit, "1")
			mainOneLine(t, err, true, name, "it must be a number from 1 to 999999999999999")
		}
	}
	if after := k.do("list", "-json"); after != before {
		t.Errorf("refused changes have made the keys %s", after)
	}
}

// TestKeySetRefusesARevokedKey, also one that is revoked after the command has read it.
func TestKeySetRefusesARevokedKey(t *testing.T) {
	k := commandsNew(t)
	k.mint("create", "-name", "shop")
	k.mint("create", "-name", "till")
	k.do("revoke", "1")
	before := k.do("list", "-json")
	for _, args := range [][]string{{"-plan", "pro"}, {"-name", "x"}, {"-expires", "1h"}} {
		_, log, err := mainRun(t, nil, slices.Concat([]string{"key", "set", "-db", k.db}, args, []string{"1"})...)
		mainOneLine(t, err, false, "key 1 is revoked")
		if log != "" {
			t.Errorf("set %v logs %s", args, log)
		}
	}
	s := storeOpen(t, k.db)
	results, err := s.edit(t.Context(), revokeKey(2, 1), setName(2, "late"))
	if mainMust(t, err); results[1].affected != 0 {
		t.Errorf("%d rows of a key that was revoked meanwhile are changed", results[1].affected)
	}
	if after := k.do("list", "-json"); strings.Replace(after, "1970-01-01T00:00:00.001Z", "", 1) == after || strings.Contains(after, "late") ||
		strings.SplitAfter(after, "}")[0] != strings.SplitAfter(before, "}")[0] {
		t.Errorf("the keys are %s\nand were %s", after, before)
	}
}

// TestKeySetWipesNoName: an empty one is an unset variable of a script, more often than a wish.
func TestKeySetWipesNoName(t *testing.T) {
	k := commandsNew(t)
	k.mint("create", "-name", "shop")
	for _, name := range []string{"", " "} {
		_, _, err := mainRun(t, nil, "key", "set", "-db", k.db, "-name", name, "1")
		mainOneLine(t, err, true, "-name", "it must not be blank")
	}
	if got := k.show("1"); got.Name != "shop" {
		t.Errorf("the key is %+v", got)
	}
}

// TestNumbersAreDecimal: 0100 is 100, as people read it, and not 64.
func TestNumbersAreDecimal(t *testing.T) {
	k := commandsNew(t)
	k.mint("create", "-plan", "enterprise", "-per-minute", "0100", "-per-day", "08")
	if got := k.show("1"); got.PerMinute != 100 || got.PerDay != 8 {
		t.Errorf("the limits are %d and %d", got.PerMinute, got.PerDay)
	}
	if lines := strings.Count(k.do("usage", "-days", "010", "1"), "\n"); lines != 11 {
		t.Errorf("010 days are %d lines", lines)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	_, _, err := mainRun(t, nil, "backup", "-db", k.db, "-skip-ids", "010", copied)
	mainMust(t, err)
	k.db = copied
	k.mint("create")
	if got := k.show("12"); got.ID != 12 {
		t.Errorf("the next key is %+v", got)
	}
	for _, args := range [][]string{
		{"key", "set", "-per-minute", "0x10", "1"}, {"key", "set", "-per-day", "1_000", "1"}, {"key", "usage", "-days", "0b1"},
		{"restore", "-skip-ids", "0o7", copied}, {"pet", "set", "-category", "0x1", "1"}, {"pet", "set", "-category", "1_0", "1"},
	} {
		_, _, err := mainRun(t, map[string]string{"PETSTORE_DB": k.db}, args...)
		mainOneLine(t, err, true, "invalid value", args[len(args)-2])
	}
}

// TestAVariableChangesNothing: what is changed, and which pets are exported, the command line says alone.
func TestAVariableChangesNothing(t *testing.T) {
	k := commandsNew(t)
	k.mint("create", "-name", "shop", "-plan", "enterprise", "-per-minute", "5", "-per-day", "6")
	s := storeOpen(t, k.db)
	storeCreate(t, s, NewPet{"Rex", 1, Available})
	storeCreate(t, s, NewPet{"Tom", 2, Pending})
	env := map[string]string{"PETSTORE_DB": k.db, "PETSTORE_NAME": "other", "PETSTORE_PLAN": "pro", "PETSTORE_EXPIRES": "1h",
		"PETSTORE_PER_MINUTE": "50", "PETSTORE_PER_DAY": "60", "PETSTORE_STATUS": "pending", "PETSTORE_CATEGORY": "9"}
	for _, c := range []struct{ line, want string }{
		{"key set -name till 1", `"msg":"key changed","id":1,"name":"till"}`},
		{"key set -expires 0 1", `"msg":"key changed","id":1,"expires":0}`},
		{"pet set -status sold 1", `"msg":"pet changed","id":"1","status":"sold"}`},
		{"pet set -category 0 1", `"msg":"pet changed","id":"1","category":"0"}`},
		{"pet set -name Max 1", `"msg":"pet changed","id":"1","name":"Max"}`},
		{"pet export", `"msg":"2 pets exported"`},
	} {
		_, log, err := mainRun(t, env, strings.Fields(c.line)...)
		if err != nil || !strings.Contains(log, c.want) {
			t.Errorf("%s says %v, %s; want %s", c.line, err, log, c.want)
		}
		for _, unknown := range []string{"PETSTORE_STATUS", "PETSTORE_CATEGORY"} { // no command heeds them
			if !strings.Contains(log, `"variable":"`+unknown+`"`) {
				t.Errorf("%s does not warn of %s: %s", c.line, unknown, log)
			}
		}
	}
	for _, verb := range []string{"key set", "pet set"} {
		_, _, err := mainRun(t, env, append(strings.Fields(verb), "1")...)
		mainOneLine(t, err, true, "petstore "+verb+" needs a flag that says what to change")
	}
	if got := k.show("1"); got.Name != "till" || got.Plan != "enterprise" || got.PerMinute != 5 || got.PerDay != 6 || got.ExpiresAt != nil {
		t.Errorf("the key is %+v", got)
	}
	want := `{"id":1,"name":"Max","categoryId":0,"status":"sold"}` + "\n" + `{"id":2,"name":"Tom","categoryId":2,"status":"pending"}` + "\n"
	if got := petsIn(t, k.db); got != want {
		t.Errorf("the pets are\n%s, want\n%s", got, want)
	}
}

// TestAKeyThatHasExpiredCanBeRevived: by the operator, who may be late.
func TestAKeyThatHasExpiredCanBeRevived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		k.mint("create", "-expires", "1h")
		time.Sleep(2 * time.Hour)
		if table := k.do("show", "1"); !strings.Contains(table, " expired ") {
			t.Errorf("after its end show prints\n%s", table)
		}
		k.do("set", "-expires", "30d", "1")
		if table := k.do("show", "1"); !strings.Contains(table, " active; ends 2000-01-31 ") {
			t.Errorf("after its revival show prints\n%s", table)
		}
	})
}

func TestDurationsMayBeWholeDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i, c := range []struct{ flag, value, want string }{
			{"-expires", "90d", "2000-03-31T00:00:00Z"}, {"-expires", "1d", "2000-01-02T00:00:00Z"}, {"-expires", "007d", "2000-01-08T00:00:00Z"},
			{"-expires", "36h", "2000-01-02T12:00:00Z"}, {"-expires", "1h30m", "2000-01-01T01:30:00Z"}, {"-expires", "0d", "null"}, {"-expires", "0", "null"},
			{"-expires", "65535d", "2179-06-06T00:00:00Z"},
			{"-overlap", "2d", "2000-01-03T00:00:00Z"}, {"-overlap", "0d", "2000-01-01T00:00:00Z"}, {"-overlap", "10m", "2000-01-01T00:10:00Z"},
		} {
			k := commandsNew(t)
			if c.flag == "-expires" {
				k.mint("create", c.flag, c.value)
			} else {
				k.mint("create")
				k.mint("rotate", c.flag, c.value, "1")
			}
			if got := commandsTime(k.show("1").ExpiresAt); got != c.want {
				t.Errorf("%d: %s %s gives %s, want %s", i+1, c.flag, c.value, got, c.want)
			}
		}
	})
	k := commandsNew(t)
	k.mint("create")
	before := k.do("list", "-json")
	for _, bad := range []string{"90 d", "d", "-1d", "+1d", "1.5d", "1d12h", "90D", "65536d", "99999999999999999999d", "0x1d", "1_0d", "١d", "90", "week", "1w", " 1d", ""} {
		for _, args := range [][]string{{"create", "-expires", bad}, {"set", "-expires", bad, "1"}, {"rotate", "-overlap", bad, "1"}} {
			out, _, err := mainRun(t, map[string]string{"PETSTORE_DB": k.db}, append([]string{"key"}, args...)...)
			mainOneLine(t, err, true, args[1], strconv.Quote(bad), "it must be like 90d, 36h or 10m")
			if out != "" {
				t.Errorf("key %v prints %q", args, out)
			}
		}
	}
	for _, variable := range []string{"PETSTORE_EXPIRES", "PETSTORE_OVERLAP"} {
		_, _, err := mainRun(t, map[string]string{"PETSTORE_DB": k.db, variable: "soon"}, "key", map[string]string{
			"PETSTORE_EXPIRES": "create", "PETSTORE_OVERLAP": "rotate"}[variable], "1")
		mainOneLine(t, err, true, variable, `"soon"`, "it must be like 90d, 36h or 10m")
	}
	if after := k.do("list", "-json"); after != before {
		t.Errorf("bad durations have changed the keys to %s", after)
	}
}

// TestKeyShowTellsTheHistory: when the key was made and used, and which keys came before and after it.
func TestKeyShowTellsTheHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		history := func(id string) string {
			lines := strings.SplitAfterN(k.do("show", id), "\n", 3) // the table has two
			return lines[2]
		}
		const share = "keys that succeed one another share their usage, limits and time of last use\n"
		time.Sleep(time.Second)
		k.mint("create", "-name", "shop")
		k.mint("create", "-name", "other")
		if got := history("1"); got != "created 2000-01-01 00:00:01Z, never used\n" {
			t.Errorf("of a new key it is %q", got)
		}
		time.Sleep(26 * time.Hour)
		k.mint("rotate", "1") // 3
		time.Sleep(time.Hour)
		k.mint("rotate", "-overlap", "0s", "3") // 4
		k.write(limitsSave(1, &usage{minute: bucket{used: 1, ends: instantOf(time.Now()) + minuteMillis}, day: bucket{used: 1, ends: instantOf(time.Now()) + dayMillis}}))
		time.Sleep(time.Hour)
		for id, want := range map[string]string{
			"1": "created 2000-01-01 00:00:01Z, last used 2000-01-02 03:00Z\nsucceeded by key 3\n" + share,
			"2": "created 2000-01-01 00:00:01Z, never used\n",
			"3": "created 2000-01-02 02:00:01Z, last used 2000-01-02 03:00Z\nsucceeds key 1\nsucceeded by key 4\n" + share,
			"4": "created 2000-01-02 03:00:01Z, last used 2000-01-02 03:00Z\nsucceeds key 3\n" + share,
		} {
			if got := history(id); got != want {
				t.Errorf("of key %s it is\n%swant\n%s", id, got, want)
			}
		}
		k.mint("rotate", "1") // 5
		want := "created 2000-01-01 00:00:01Z, last used 2000-01-02 03:00Z\nsucceeded by key 3\nsucceeded by key 5\n" + share
		if got := history("1"); got != want || *k.show("1").SucceededBy != 5 {
			t.Errorf("of key 1 with two successors, the last of them %d, it is\n%s", *k.show("1").SucceededBy, got)
		}
	})
	if err := run(t.Context(), []string{"key", "show", "-db", mainMade(t), "1"}, nil, nil, commandsFull{}, io.Discard); err == nil {
		t.Error("what cannot be shown is no error")
	}
}

// TestCommandsOnOneKeyReadNoOthers: among a million keys they would take seconds, the lock held.
func TestCommandsOnOneKeyReadNoOthers(t *testing.T) {
	k := commandsNew(t)
	k.mint("create")
	s := storeOpen(t, k.db)
	plans := storeRaw(t, k.db)
	seen := 0
	for _, verb := range keyVerbs {
		if !strings.Contains(verb.argument, "ID") {
			continue
		}
		now := instantOf(time.Now())
		k.write(limitsSave(1, &usage{bannedAt: now, bannedUntil: now + dayMillis}), sqlOf("UPDATE api_keys SET revoked_at = 0, expires_at = 0, unbanned_at = 0"))
		statements := map[string]statement{}
		args := []string{"1"}
		if verb.name == "key set" {
			args = []string{"-plan", "pro", "-name", "x", "-expires", "1h", "1"}
		}
		c, err := commandsInvocation(verb.name, args)
		mainMust(t, err)
		c.stdout, c.log = io.Discard, slog.New(slog.DiscardHandler)
		c.store = newStore(&storeEngine{engine: s.engine, check: func(st statement, _ []any) { statements[st.query] = st }})
		if verb.check != nil {
			mainMust(t, verb.check(c))
		}
		mainMust(t, c.findKey(t.Context()))
		mainMust(t, verb.run(t.Context(), c))
		seen += len(statements)
		for _, st := range statements {
			rows, err := plans.Query("EXPLAIN QUERY PLAN "+st.query, st.args...)
			mainMust(t, err)
			for rows.Next() {
				var id, parent, unused int
				var detail string
				mainMust(t, rows.Scan(&id, &parent, &unused, &detail))
				// SQLite calls it SEARCH, without USING, when it looks at all rows for a max().
				if regexp.MustCompile(`^SCAN (k|api_keys|usage_days)\b|^SEARCH (k|api_keys|usage_days)$`).MatchString(detail) {
					t.Errorf("%s: %s in\n%s", verb.name, detail, st.query)
				}
			}
			mainMust(t, rows.Close())
		}
	}
	if seen < 13 {
		t.Errorf("the commands have sent %d statements", seen)
	}
}

func TestKeyRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		k.mint("create", "-name", "shop", "-plan", "enterprise", "-per-minute", "5", "-per-day", "50")
		now := instantOf(time.Now())
		k.write(limitsSave(1, &usage{minute: bucket{used: 3, ends: now + minuteMillis}, day: bucket{used: 30, ends: now + dayMillis}}))
		time.Sleep(time.Second)
		next := k.mint("rotate", "1")
		if got := k.show("1"); commandsTime(got.ExpiresAt) != "2000-01-02T00:00:01Z" || got.RevokedAt != nil {
			t.Errorf("the old key lives until %s, want a day's overlap", commandsTime(got.ExpiresAt))
		}
		want := commandsShown{ID: 2, Name: "shop", Plan: "enterprise", LastFour: next[43:], CreatedAt: "2000-01-01T00:00:01Z",
			PerMinute: 5, PerDay: 50, UsedThisMinute: 3, UsedToday: 30, State: "active"}
		got := k.show("2")
		if commandsTime(got.LastUsedAt) != "2000-01-01T00:00:00Z" || got.Succeeds == nil || *got.Succeeds != 1 {
			t.Errorf("the successor was last used %s, and is that of %v", commandsTime(got.LastUsedAt), got.Succeeds)
		}
		got.LastUsedAt, got.Succeeds = nil, nil
		if got != want {
			t.Errorf("the successor is %+v, want the same plan, limits and usage", got)
		}
		k.mint("rotate", "-overlap", "1h", "2")
		if old, got := k.show("2"), k.show("3"); commandsTime(old.ExpiresAt) != "2000-01-01T01:00:01Z" || got.UsedToday != 30 {
			t.Errorf("rotated again: the old key lives until %s, its successor has used %d today", commandsTime(old.ExpiresAt), got.UsedToday)
		}
		k.mint("rotate", "-overlap", "0s", "3")
		if old := k.show("3"); commandsTime(old.ExpiresAt) != "2000-01-01T00:00:01Z" {
			t.Errorf("without an overlap the old key lives until %s", commandsTime(old.ExpiresAt))
		}
		k.write(limitsSave(1, &usage{day: bucket{used: 31, ends: now + dayMillis}}))
		for _, id := range []string{"1", "2", "3", "4"} {
			if got := k.show(id); got.UsedToday != 31 {
				t.Errorf("key %s has used %d today; one line has one usage", id, got.UsedToday)
			}
		}
	})
}

func TestKeyRotateKeepsTestKeysTestKeys(t *testing.T) {
	k := commandsNew(t)
	k.mint("create", "-test")
	if next := k.mint("rotate", "1"); !strings.HasPrefix(next, "pet_test_") {
		t.Errorf("the successor of a test key is a %s key", next[:9])
	}
}

func TestRotatingAgainInsideTheOverlapDoesNotShortenTheSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		k.mint("create")
		k.mint("create", "-expires", "48h")
		for _, id := range []string{"1", "2", "1", "2"} { // the output of the first was lost, say
			k.mint("rotate", "-overlap", "1h", id)
		}
		for id, want := range map[string]string{"3": "null", "4": "2000-01-03T00:00:00Z", "5": "null", "6": "2000-01-03T00:00:00Z"} {
			if got := commandsTime(k.show(id).ExpiresAt); got != want {
				t.Errorf("the successor %s lives until %s, want %s", id, got, want)
			}
		}
	})
}

func TestAnOverlapNeverExtendsAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		k.mint("create", "-expires", "48h")
		time.Sleep(36 * time.Hour)
		k.mint("rotate", "-overlap", "240h", "1")
		if got := commandsTime(k.show("1").ExpiresAt); got != "2000-01-03T00:00:00Z" {
			t.Errorf("the old key lives until %s", got)
		}
		if got := commandsTime(k.show("2").ExpiresAt); got != "2000-01-04T12:00:00Z" {
			t.Errorf("the successor lives until %s, want as long as its predecessor was made for", got)
		}
	})
}

func TestAKeyThatHasEndedCannotBeRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		k.mint("create", "-expires", "1h")
		k.mint("create")
		k.do("revoke", "2")
		time.Sleep(time.Hour)
		for _, id := range []string{"1", "2"} {
			before := k.show(id)
			out, _, err := mainRun(t, nil, "key", "rotate", "-db", k.db, id)
			var misuse *usageError
			if err == nil || errors.As(err, &misuse) || out != "" {
				t.Errorf("rotate %s: %q, %v, want a plain error", id, out, err)
			}
			if got := k.show(id); commandsTime(got.ExpiresAt) != commandsTime(before.ExpiresAt) {
				t.Errorf("rotate %s: the key now ends at %s", id, commandsTime(got.ExpiresAt))
			}
		}
		if lines := strings.Count(k.do("list"), "\n"); lines != 3 {
			t.Errorf("a successor was made after all: the list has %d lines", lines)
		}
	})
}

func TestKeyRevokeIsForGoodAndKeepsItsFirstTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		k.mint("create")
		k.mint("create")
		for range 2 {
			if out := k.do("revoke", "1"); out != "" {
				t.Errorf("revoke prints %q on stdout", out)
			}
			if got := commandsTime(k.show("1").RevokedAt); got != "2000-01-01T00:00:00Z" {
				t.Errorf("revoked at %s", got)
			}
			time.Sleep(time.Hour)
		}
		if got := k.show("2"); got.RevokedAt != nil {
			t.Errorf("the other key is revoked too: %+v", got)
		}
	})
}

func TestKeyUnban(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := commandsNew(t)
		k.mint("create")
		k.mint("rotate", "1")
		k.mint("create")
		ban := func(id int64) {
			now := instantOf(time.Now())
			k.write(limitsSave(id, &usage{bannedAt: now, bannedUntil: now + 600_000}))
		}
		ban(1)
		ban(3)
		time.Sleep(time.Minute)
		for _, id := range []string{"1", "2", "3"} {
			if got := commandsTime(k.show(id).BannedUntil); got != "2000-01-01T00:10:00Z" {
				t.Errorf("key %s is shown as banned until %s", id, got)
			}
		}
		if out := k.do("unban", "1"); out != "" {
			t.Errorf("unban prints %q on stdout", out)
		}
		for id, want := range map[string]string{"1": "null", "2": "null", "3": "2000-01-01T00:10:00Z"} {
			if got := commandsTime(k.show(id).BannedUntil); got != want {
				t.Errorf("after the unban key %s is shown as banned until %s, want %s", id, got, want)
			}
		}
		time.Sleep(time.Minute)
		ban(1)
		if got := commandsTime(k.show("1").BannedUntil); got != "2000-01-01T00:12:00Z" {
			t.Errorf("a later ban is shown as %s", got)
		}
	})
}

func TestAnUnknownIDIsAnErrorButNoMisuse(t *testing.T) {
	k := commandsNew(t)
	k.mint("create")
	for _, line := range []string{
		"show 2", "show -json 2", "set -plan pro 2", "rotate 2", "revoke 2", "unban 2", "usage 2", "usage -json -days 7 abc",
		"show abc", "show 0", "show 1.0", "show 99999999999999999999", "revoke 0",
	} {
		args := strings.Fields(line)
		out, log, err := mainRun(t, map[string]string{"PETSTORE_DB": k.db}, append([]string{"key"}, args...)...)
		var misuse *usageError
		if err == nil || errors.As(err, &misuse) || !strings.Contains(err.Error(), args[len(args)-1]) || out != "" || log != "" {
			t.Errorf("key %s: %q, %v, want an error that names the id", line, out, err)
		}
	}
}

func TestMisuseOfKeyCommands(t *testing.T) {
	k := commandsNew(t)
	k.mint("create", "-name", "shop")
	before := k.do("list", "-json")
	for _, line := range []string{
		"", "frobnicate", "-json", "Create",
		"create extra", "create two more",
		"create -plan gold", "create -plan Free", "create -plan=",
		"create -plan enterprise", "create -plan enterprise -per-minute 5", "create -plan enterprise -per-day 5",
		"create -plan enterprise -per-minute 0 -per-day 5", "create -plan enterprise -per-minute 5 -per-day -1",
		"create -plan pro -per-minute 5", "create -plan pro -per-day 5", "create -per-minute 5 -per-day 5",
		"create -expires -1h", "create -expires soon", "create -expires 999ms", "create -per-minute x", "create -name \x07", "create -unknown",
		"list 1", "list 1 2", "list -plan pro",
		"show", "show 1 2", "show 1 -jso",
		"set 1", "set -plan gold 1", "set -plan pro", "set -plan enterprise 1", "set -plan free -per-day 9 1", "set -per-day 9 1", "set -per-minute 9 -per-day 9 -name x 1", "set -plan= 1",
		"set -name x", "set -expires -1h 1", "set -expires soon 1", "set -expires 999ms 1", "set -test 1", "set 1 -name", "create -name=",
		"set -plan enterprise -per-minute 1000000000000000 -per-day 1 1", "set -plan enterprise -per-minute 1 -per-day 1000000000000000 1",
		"create -plan enterprise -per-minute 1000000000000000 -per-day 1", "create -plan enterprise -per-minute 1 -per-day 1000000000000000",
		"rotate", "rotate -overlap -1h 1", "rotate -overlap x 1", "rotate 1 -overlap",
		"revoke", "revoke 1 1", "unban", "unban -json 1",
		"usage 1 1", "usage -days 0", "usage -days 401", "usage -days -1 1", "usage -days x", "usage -days 1d", "usage -test",
	} {
		args := append([]string{"key"}, strings.Fields(line)...)
		if strings.HasSuffix(line, "\x07") {
			args[len(args)-1] = "\x07"
		}
		out, _, err := mainRun(t, map[string]string{"PETSTORE_DB": k.db}, args...)
		var misuse *usageError
		if !errors.As(err, &misuse) || out != "" {
			t.Errorf("key %s: %q, %v, want a *usageError", line, out, err)
		}
	}
	if after := k.do("list", "-json"); after != before {
		t.Errorf("misuse has changed the keys to %s", after)
	}
}

func TestTheEnvironmentTwinsOfKeyCommands(t *testing.T) {
	k, other := commandsNew(t), commandsNew(t)
	environ := map[string]string{"PETSTORE_DB": k.db, "PETSTORE_PLAN": "business"}
	if _, _, err := mainRun(t, environ, "key", "create"); err != nil {
		t.Fatal(err)
	}
	if got := k.show("1"); got.Plan != "business" {
		t.Errorf("PETSTORE_DB and PETSTORE_PLAN gave %+v", got)
	}
	if _, _, err := mainRun(t, environ, "key", "create", "-db", other.db, "-plan", "pro"); err != nil {
		t.Fatal(err)
	}
	if got := other.show("1"); got.Plan != "pro" {
		t.Errorf("the flags should win, but gave %+v", got)
	}
	environ["PETSTORE_PER_DAY"] = "many"
	var misuse *usageError
	if _, _, err := mainRun(t, environ, "key", "create"); !errors.As(err, &misuse) || !strings.Contains(err.Error(), "PETSTORE_PER_DAY") {
		t.Errorf("a bad value in the environment: %v", err)
	}
}

func TestKeyCommandsOtherThanCreateMakeNoDatabase(t *testing.T) {
	k := commandsNew(t)
	for _, line := range []string{"list", "show 1", "set -plan pro 1", "rotate 1", "revoke 1", "unban 1", "usage", "usage 1"} {
		_, _, err := mainRun(t, map[string]string{"PETSTORE_DB": k.db}, append([]string{"key"}, strings.Fields(line)...)...)
		var misuse *usageError
		if err == nil || errors.As(err, &misuse) || !strings.Contains(err.Error(), k.db) {
			t.Errorf("key %s: %v, want an error that names the file", line, err)
		}
	}
	if _, err := os.Stat(k.db); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file: %v", err)
	}
	k.mint("create")
}

// TestACommandThatWaitsForALockCanBeStopped: it would wait for 10 seconds.
func TestACommandThatWaitsForALockCanBeStopped(t *testing.T) {
	db := mainMade(t)
	synctest.Test(t, func(t *testing.T) {
		other := openPool(db, 0)
		defer other.Close()
		lock, err := other.Conn(t.Context())
		mainMust(t, err)
		defer lock.Close()
		_, err = lock.ExecContext(t.Context(), "BEGIN IMMEDIATE")
		mainMust(t, err)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() {
			stopped <- run(ctx, []string{"key", "revoke", "-db", db, "1"}, nil, nil, io.Discard, io.Discard)
		}()
		synctest.Wait() // it has found the lock
		cancel()
		if err := <-stopped; !errors.Is(err, context.Canceled) || time.Since(start) > time.Second {
			t.Errorf("after %v it ends with %v", time.Since(start), err)
		}
	})
	if out, _, err := mainRun(t, nil, "key", "show", "-json", "-db", db, "1"); err != nil || !strings.Contains(out, `"revokedAt": null`) {
		t.Errorf("what was stopped has changed the key: %s, %v", out, err)
	}
}
