package main

// Tests of the flags: their defaults, values, variables and checks, and the documents' tables.

import (
	"flag"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// serviceFlags has, for each flag of the service, a good value and the way it is in the config,
// another good value, and bad ones, with bars between them.
const serviceFlags = `
addr
	takes 127.0.0.1:1 as 127.0.0.1:1
	or 127.0.0.1:2
	refuses 8080|localhost|a:b:c|localhost:99999|localhost:-1|localhost:nosuchport
db
	takes a.db as a.db
	or b.db
	refuses http://a|http://a:1/x|http://a:1,b:1|http://a:1,|ftp://a:1
base-url
	takes https://a.example/v1 as https://a.example/v1
	or https://b.example/v1
	refuses a.example/v1|/v1|https://a.example|https://a.example/v1/|https://a.example/v2
	refuses ftp://a.example/v1|https:///v1|https://a.example/?x=/v1|https://a.example/#/v1
	refuses https://u:p@a.example/v1|https://a.example/%zz/v1|http://a.example:x/v1
	refuses https://a.example/a b/v1|https://zoë.example/v1
staging-url
	takes http://[::1]:8080/shop/v1 as http://[::1]:8080/shop/v1
	or https://b.example/v1
	refuses a.example|https://a.example|ftp://a.example/v1
staging
	takes true as true
	or false
	refuses perhaps|2
ban-for
	takes 1s as 1000000000
	or 8s
	refuses 10|soon|-1s|10 m|1ms
cache
	takes 0 as 0
	or 2MiB
	refuses x|-1|16|2KiB|+1MiB|1.5MiB|16 MiB|16MB|16mib|MiB|99999999MiB|1GiB
client-ip-header
	takes X-A as X-A
	or X-B
	refuses X Forwarded-For|X-Real-IP:|Ü
cors-origin
	takes http://a.example:443,https://a.example:80 as [http://a.example:443 https://a.example:80]
	takes https://a.example:8443,http://[::1]:8080 as [https://a.example:8443 http://[::1]:8080]
	takes http://localhost:3000,http://127.0.0.1 as [http://localhost:3000 http://127.0.0.1]
	takes https://a.example:4430,http://[fe80::80] as [https://a.example:4430 http://[fe80::80]]
	takes https://xn--zo-hja.example,* as [https://xn--zo-hja.example *]
	takes https://a.example,https://my-shop_1.de as [https://a.example https://my-shop_1.de]
	or *
	refuses a.example|https://A.example|https://a.example/|https://a.example/x|https://|null
	refuses https://a.example,|https://u@a.example|https://a.example?x|https://a.example:443
	refuses http://a.example:80|https://[::1]:443|https://*.example|https://a*.example
	refuses https://zoë.example|https://a.example:
idle-timeout
	takes 620s as 620000000000
	or 1s
	refuses 0|999ms|-1m|soon
tls-cert
	takes a.pem as a.pem
	takes a=b.pem as a=b.pem
	or b.pem
tls-key
	takes a.key as a.key
	or b.key
log
	takes text as text
	or json
	refuses xml|Text|texts|ajson
log-level
	takes DEBUG as -4
	or ERROR
	refuses loud|1|WARNING
debug-addr
	takes 127.0.0.1:1 as 127.0.0.1:1
	or [::1]:2
	refuses 6060|a:b:c|localhost:99999
debug-allow-remote
	takes true as true
	or false
	refuses perhaps`

func TestEveryFlagOfTheServiceHasAVariableAndIsChecked(t *testing.T) {
	var name, good, shown string
	var tested, names []string
	want := func(args []string, environ ...string) {
		t.Helper()
		wantEqual(t, changedFields(t, args, environ...), shown, "the config of ", args, environ)
	}
	for line := range strings.Lines(strings.TrimSpace(serviceFlags)) {
		verb, value, _ := strings.Cut(strings.Trim(line, "\t\n"), " ")
		switch verb {
		case "takes":
			good, shown, _ = strings.Cut(value, " as ")
			want([]string{"-" + name + "=" + good})
			want(nil, variableOf(name)+"="+good)
		case "or": // of flag and variable, the flag wins
			want([]string{"-" + name + "=" + good}, variableOf(name)+"="+value)
		case "refuses":
			for bad := range strings.SplitSeq(value, "|") {
				_, _, err := petstore(t, nil, "-"+name+"="+bad)
				wantOneLine(t, err, true, "-"+name, bad, "must be", "; see petstore serve -h")
				_, _, err = petstore(t, map[string]string{variableOf(name): bad})
				wantOneLine(t, err, true, variableOf(name), bad, "must be",
					"; see petstore serve -h")
			}
		default:
			name = verb
			tested = append(tested, name)
		}
	}
	serving := commandNamed("serve").newInvocation(&process{})
	serving.VisitAll(func(f *flag.Flag) {
		names = append(names, f.Name)
	})
	slices.Sort(tested)
	wantEqual(t, tested, names, "what is tested")
}

// changedFields are the fields of the service's config that are not as without flags.
func changedFields(t *testing.T, args []string, environ ...string) string {
	t.Helper()
	changed, err := parseCommand("serve", args, environ...)
	must(t, err)
	usual, err := parseCommand("serve", nil)
	must(t, err)
	var texts []string
	a, b := reflect.ValueOf(usual.config), reflect.ValueOf(changed.config)
	for _, field := range reflect.VisibleFields(a.Type()) {
		text := fmt.Sprint(b.FieldByIndex(field.Index))
		if !field.Anonymous && text != fmt.Sprint(a.FieldByIndex(field.Index)) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, " ")
}

func TestDefaults(t *testing.T) {
	cmd, err := parseCommand("serve", nil)
	must(t, err)
	got := fmt.Sprintln(cmd.addr, cmd.db, cmd.banFor, cmd.cache, cmd.staging, cmd.logFormat)
	const want = "localhost:8080 petstore.db 10m0s 16777216 false auto\n"
	wantEqual(t, got, want, "the defaults")
	unset := fmt.Sprint(cmd.baseURL, cmd.clientIPHeader, cmd.debugAddr, cmd.corsOrigins)
	wantEqual(t, unset, "[]", "what has no default")
}

func TestACORSOriginMayBeRepeated(t *testing.T) {
	line := "-cors-origin https://a.example -cors-origin http://b.example,*"
	got := changedFields(t, strings.Fields(line))
	wantEqual(t, got, "[https://a.example http://b.example *]", "the origins")
}

func TestAClusterIsItsNodes(t *testing.T) {
	for db, want := range rowsOf(t, `
		http://n1:4001 => [http://n1:4001]
		http://n_1:4001,https://[::1]:4001/ => [http://n_1:4001 https://[::1]:4001/]
		https://pets:p%20w@10.0.0.1:4001 => [https://pets:p%20w@10.0.0.1:4001]
		pets.db => []
		http://n1:4001,http://n2 => []
		http://n1:4001?x=@n2:4001 => []
		http://u:p/w@n1:4001 => []
		http://n1:4001, http://n2:4001 => []
		http://%zz@n1:4001 => []
		http://n1:4001,http://n2:4001/db/query => []`) {
		wantEqual(t, fmt.Sprint(nodeURLs(db)), want, "the nodes of ", db)
	}
}

// TestAMisspeltDatabaseIsRefusedWithoutItsPassword, by every command, and makes no file.
func TestAMisspeltDatabaseIsRefusedWithoutItsPassword(t *testing.T) {
	t.Chdir(t.TempDir())
	refuse := func(db, line string) {
		t.Helper()
		_, log, err := petstore(t, map[string]string{"PETSTORE_DB": db}, strings.Fields(line)...)
		wantOneLine(t, err, true, "-db", "PETSTORE_DB", "http://10.0.0.1:4001", " -h")
		wantCount(t, fmt.Sprint(err, log), "sec", 0,
			"what petstore ", line, " says of the database ", db)
	}
	for db := range strings.FieldsSeq(`
		http:/ops:secret@n1 http:ops:secret@n1:4001 https:ops:secret@n1 http//ops:secret@n1
		ops:secret@n1:4001 :secret@ a:secret@n1 http:\\ops:secret@n1 C:\ops:secret@n1 a@b:secret@n1
		http:/ops:secret@n1,http://n2:4001 http://n2:4001,http:/ops:secret@n1
		http://ops:secret@n1 http://ops:sec/secret@n1:4001 ftp://ops:secret@n1:4001`) {
		for _, line := range []string{"", "key list", "restore a.db", "pet export -"} {
			refuse(db, line)
			refuse("", line+" -db "+db)
		}
		// A flag that a later one replaces is refused too: the debug address shows the whole
		// command line.
		refuse("", "-db "+db+" -db a.db")
	}
	wantNames(t, ".")
	writeText(t, "ops:secret@n1", "")
	for db := range strings.FieldsSeq(`/var/lib/petstore@1/a.db a@b.db a@b:c C:\petstore@1\a.db
		c:/petstore@1/a.db a:b.db ops:secret@n1`) {
		cmd, err := parseCommand("serve", []string{"-db", db})
		if err != nil || cmd.dbError != nil || cmd.db != db {
			t.Errorf("-db %s is refused: %v, %v", db, err, cmd.dbError)
		}
	}
}

// TestADatabaseThatAFileOfSettingsGarblesIsRefused: some programs pass on the quotes, and the line
// ends of Windows, that others take away. Such a name would be that of a new database.
func TestADatabaseThatAFileOfSettingsGarblesIsRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	const control, quotes = "it must hold no control character", "it must stand without the quotes"
	for db, want := range map[string]string{
		"a.db\r": control, "a\n.db": control, "http://n1:4001\r": control, "\ta.db": control,
		"'a.db'": quotes, `"a.db"`: quotes, `"http://n1:4001"`: quotes, "''": quotes,
	} {
		for _, line := range []string{"", "key create"} {
			_, _, err := petstore(t, map[string]string{"PETSTORE_DB": db}, strings.Fields(line)...)
			wantOneLine(t, err, true, "PETSTORE_DB", fmt.Sprintf("%q", db), want)
			_, _, err = petstore(t, nil, append(strings.Fields(line), "-db", db)...)
			wantOneLine(t, err, true, "-db", fmt.Sprintf("%q", db), want)
		}
	}
	for variable, value := range map[string]string{
		"PETSTORE_ADDR": `"localhost:8080"`, "PETSTORE_LOG": "'json'",
	} {
		_, _, err := petstore(t, map[string]string{variable: value})
		wantOneLine(t, err, true, variable, quotes)
	}
	_, _, err := petstore(t, nil, "key", "create", "-db", "http://ops:secret@n1:4001\r")
	wantOneLine(t, err, true, "which is not shown", control)
	wantCount(t, err.Error(), "secret", 0, "the error")
	wantNames(t, ".")
	for _, db := range []string{"it's.db", `'a'b`, `"`} {
		wantEqual(t, databaseProblem(db), "", "what is wrong with ", db)
	}
}

// Only the command line says what is changed, and which pets are exported.
func TestAVariableChangesNothing(t *testing.T) {
	k := newKeys(t)
	k.story("create -name shop -plan enterprise -per-minute 5 -per-day 6")
	s := openDatabase(t, k.db)
	mustCreate(t, s, NewPet{Name: "Rex", CategoryID: 1, Status: Available})
	mustCreate(t, s, NewPet{Name: "Tom", CategoryID: 2, Status: Pending})
	env := variablesOf(strings.Fields(`PETSTORE_NAME=other PETSTORE_PLAN=pro PETSTORE_EXPIRES=1h
		PETSTORE_PER_MINUTE=50 PETSTORE_PER_DAY=60 PETSTORE_STATUS=pending PETSTORE_CATEGORY=9`))
	env["PETSTORE_DB"] = k.db
	for line, want := range rowsOf(t, `
		key set -name till 1 => "msg":"key changed","id":1,"name":"till"}
		key set -expires 0 1 => "msg":"key changed","id":1,"expires":"never"}
		pet set -status sold 1 => "msg":"pet changed","id":1,"status":"sold"}
		pet set -category 0 1 => "msg":"pet changed","id":1,"category":"0"}
		pet set -name Max 1 => "msg":"pet changed","id":1,"name":"Max"}
		pet export => "msg":"pets exported","pets":2
		key set -per-minute=07 1 => "msg":"key changed","id":1,"per-minute":"07"}`) {
		_, log, err := petstore(t, env, strings.Fields(line)...)
		must(t, err)
		wantPart(t, log, `"variable":"PETSTORE_STATUS"`, "the log of ", line)
		wantPart(t, log, want, "the log of ", line)
	}
	for _, line := range []string{"pet export -status= -", "key set 1", "pet set 1"} {
		_, _, err := petstore(t, env, strings.Fields(line)...)
		wantOneLine(t, err, true)
	}
	k.story("1 name=till plan=enterprise perMinute=7 perDay=6 expiresAt=null")
	want := `{"id":1,"name":"Max","categoryId":0,"status":"sold"}
{"id":2,"name":"Tom","categoryId":2,"status":"pending"}
`
	wantEqual(t, exportedPets(t, k.db), want, "the pets")
}

// variablesOf are the variables of entries such as NAME=value.
func variablesOf(environ []string) map[string]string {
	variables := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		variables[name] = value
	}
	return variables
}

func TestDurationsMayBeWholeDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newKeys(t).story(`
			create -expires 90d
			create -expires 007d
			create -expires 36h
			create -expires 1h30m
			create -expires 0d
			create -expires 0
			create -expires 65535d
			1 expiresAt=2000-03-31T00:00:00Z
			2 expiresAt=2000-01-08T00:00:00Z
			3 expiresAt=2000-01-02T12:00:00Z
			4 expiresAt=2000-01-01T01:30:00Z
			5 expiresAt=null
			6 expiresAt=null
			7 expiresAt=2179-06-06T00:00:00Z`)
	})
	for bad := range strings.SplitSeq("90 d|d|-1d|+1d|1.5d|1d12h|90D|65536d|99999999999999999999d|"+
		"0x1d|1_0d|١d|90|week|1w| 1d|999ms|-1h|", "|") {
		_, _, err := petstore(t, nil, "key", "create", "-expires", bad)
		wantOneLine(t, err, true, fmt.Sprintf("%q", bad), "it must be a number of d, h, m or s")
	}
}

// TestALifetimeIsShownInOneForm, such as 90d, in help, errors and documents. Others are taken too.
func TestALifetimeIsShownInOneForm(t *testing.T) {
	_, _, err := petstore(t, nil, "key", "set", "-expires", "week", "1")
	for what, c := range map[string]struct{ text, pattern string }{
		"help key create":   {helpOf(t, "help key create"), `\b(\d+[dhms]+)\b`},
		"help key set":      {helpOf(t, "help key set"), `\b(\d+[dhms]+)\b`},
		"the error":         {err.Error(), `\b(\d+[dhms]+)\b`},
		"docs/operating.md": {readText(t, "docs/operating.md"), `-expires (\w+)`},
	} {
		shown := allMatches(c.pattern, c.text)
		if len(shown) == 0 {
			t.Errorf("%s shows no lifetime", what)
		}
		for _, lifetime := range shown {
			wantMatch(t, lifetime, `^(\d+d|0)$`, "a lifetime in ", what)
		}
	}
}

// A flag of the service has a row of its own, and one of a command stands in the command's row.
func TestTheTablesOfTheDocumentsNameEveryCommandAndFlag(t *testing.T) {
	readme, operating := readText(t, "README.md"), readText(t, "docs/operating.md")
	for _, entry := range commands {
		isService := entry.name == "serve"
		named := "`" + entry.name + "[ `].*"
		rows := regexp.MustCompile("(?m)^\\| " + named + "$")
		if isService {
			rows = regexp.MustCompile("(?m)^\\| `-.*$")
		} else if !regexp.MustCompile("(?m)^\\|.*" + named).MatchString(readme) {
			t.Errorf("README.md has no row for %s", entry.name)
		}
		ofCommand := strings.Join(rows.FindAllString(operating, -1), "\n")
		entry.newInvocation(&process{}).VisitAll(func(f *flag.Flag) {
			ofFlag := regexp.MustCompile("-" + f.Name + "[] `]")
			if (isService || f.Name != "db") && !ofFlag.MatchString(ofCommand) {
				t.Errorf("docs/operating.md has no row for -%s of %s", f.Name, entry.name)
			}
		})
	}
}

func TestTheDebugAddressIsOnThisMachineUnlessOthersAreLetIn(t *testing.T) {
	for _, line := range []string{"", "-debug-addr localhost:6060", "-debug-addr 127.0.0.2:6060",
		"-debug-addr [::1]:6060", "-debug-addr :6060 -debug-allow-remote"} {
		cmd, err := parseCommand("serve", strings.Fields(line))
		must(t, err)
		must(t, checkServe(cmd))
	}
}
