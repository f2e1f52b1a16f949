package main

// The configuration: every flag of every verb, with its default, what it means and what is checked
// of it, and its variable in the environment. Also what a verb is given to work with.

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// usageError is a mistake on the command line or in the environment.
type usageError struct{ error }

func usageErrorf(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// process is what a verb may use of the process it runs in.
type process struct {
	environ        map[string]string // values by name
	stdin          io.Reader
	stdout, stderr io.Writer
}

// say writes a text to stdout.
func (p *process) say(text string) error { _, err := io.WriteString(p.stdout, text); return err }

// invocation is one run of a verb. The FlagSet holds the flags of the verb, and its argument.
type invocation struct {
	*process
	*flag.FlagSet
	config

	made  bool // the database was made by this command
	store *store
	key   apiKey // that ID names, if it does
	now   instant
	log   *slog.Logger // on stderr; every change of a key is logged
}

// report logs what a command did, unless it failed.
func (c *invocation) report(err error, message string, attributes ...any) error {
	if err == nil {
		c.log.Info(message, attributes...)
	}
	return err
}

// config is what the flags say, those of the service first.
type config struct {
	settings
	addr, db, debugAddr, tlsCert, tlsKey, logFormat string

	debugAllowRemote bool
	cache            int64 // bytes
	logLevel         slog.Level

	plan, name        string
	quota             quota // of -per-minute and -per-day; then what the plan admits
	expires, overlap  time.Duration
	test, json, again bool
	skipIDs, days     int64
	category, status  string // of a pet
}

func serveFlags(c *invocation) {
	c.textFlag(&c.addr, "addr", "localhost:8080", "HOST:PORT", isAddr,
		"listen on `HOST:PORT`; port 0 takes a free one")
	c.textFlag(&c.baseURL, "base-url", "", mustBeURL, isBaseURL,
		"the public `URL` of the service, ending in /v1, for Location and Link;\n"+
			"without it they are paths, which are right behind any proxy")
	c.textFlag(&c.stagingURL, "staging-url", "", mustBeURL, isBaseURL,
		"the public `URL` of the staging environment, ending in /v1, for /openapi.json")
	c.BoolVar(&c.staging, "staging", false,
		"be a staging instance: issue and take only pet_test_ keys")
	c.durationFlag(&c.banFor, "ban-for", "10m",
		"ban a key for this `DURATION` when its client insists after 429;\n0 turns bans off")
	c.sizeFlag(&c.cache, "cache", "16MiB",
		"keep this `SIZE` of pages and pets in memory, such as 64MiB, 500KiB, or 0 for none;\n"+
			"the process takes up to twice as much")
	c.textFlag(&c.clientIPHeader, "client-ip-header", "",
		"the name of a header", oneOf(`[A-Za-z0-9-]+`),
		"the `HEADER` in which your proxy names the caller, such as X-Forwarded-For;\n"+
			"only its rightmost entry counts")
	c.originsFlag(&c.corsOrigins, "cors-origin",
		"let pages of this `ORIGIN` call the service, such as https://example.com, or *;\n"+
			"repeat it for more, or separate them by commas")
	c.StringVar(&c.tlsCert, "tls-cert", "",
		"the `FILE` with a certificate (PEM); with -tls-key it turns TLS and HTTP/2 on")
	c.StringVar(&c.tlsKey, "tls-key", "", "the `FILE` with the private key (PEM)")
	c.textFlag(&c.logFormat, "log", "auto", "text, json or auto", oneOf("text|json|auto"),
		"the `FORMAT` of the log on stderr: text, json, or auto,\n"+
			"which is text on a terminal and json elsewhere")
	c.TextVar(&c.logLevel, "log-level", slog.LevelInfo,
		"log from this `LEVEL` on: debug (a line for each request), info,\nwarn or error")
	c.textFlag(&c.debugAddr, "debug-addr", "", "HOST:PORT", isAddr,
		"serve on `HOST:PORT`, without keys, a page that shows how the service is doing,\n"+
			"and /metrics, /healthz, /readyz and /debug/pprof/")
	c.BoolVar(&c.debugAllowRemote, "debug-allow-remote", false,
		"let -debug-addr be reached from other machines")
}

// checkServe checks what concerns more than one flag of the service.
func checkServe(c *invocation) error {
	if (c.tlsCert == "") != (c.tlsKey == "") {
		return usageErrorf("-tls-cert and -tls-key go together")
	}
	if c.debugAddr == "" || c.debugAllowRemote {
		return nil
	}
	host, _, _ := net.SplitHostPort(c.debugAddr)
	if host == "localhost" || net.ParseIP(host).IsLoopback() {
		return nil
	}
	return usageErrorf("-debug-addr %s can be reached from other machines, without a key; "+
		"say localhost, or add -debug-allow-remote", c.debugAddr)
}

// databaseFlag declares -db, which every verb has that has to do with a database.
func databaseFlag(c *invocation) {
	c.textFlag(&c.db, "db", "petstore.db",
		"a file, or addresses like http://10.0.0.1:4001, separated by commas", isDatabase,
		"the `DATABASE`: a file, which the service makes if there is none, or the addresses of\n"+
			"an rqlite cluster, such as http://10.0.0.1:4001,http://10.0.0.2:4001,\n"+
			"separated by commas")
}

func keyCreateFlags(c *invocation) {
	keyFlags(c)
	c.BoolVar(&c.test, "test", false,
		"make a pet_test_ key, for a staging instance, as PETSTORE_STAGING=true does")
}

// keyFlags declares what can be said of a key, when it is made and later.
func keyFlags(c *invocation) {
	names := strings.Join(slices.Sorted(maps.Keys(plans)), ", ")
	c.textFlag(&c.plan, "plan", "", "one of "+names, isPlan,
		"the `PLAN`, one of "+names+"; a new key is free without it")
	c.numberFlag(&c.quota.PerMinute, "per-minute", 0, 1, maxQuota,
		"a limit of `N` requests a minute, for -plan enterprise")
	c.numberFlag(&c.quota.PerDay, "per-day", 0, 1, maxQuota,
		"a limit of `N` requests a day, for -plan enterprise")
	c.nameFlag(checkKeyName)
	c.durationFlag(&c.expires, "expires", "",
		"let the key end after this `DURATION`, such as 90d, 36h or 10m; 0 is never")
}

// checkKeySet checks what key set changes. Whether it may change limits without naming the plan is
// known when the key is read.
func checkKeySet(c *invocation) error {
	if err := checkChange(c); err != nil || c.plan == "" {
		return err
	}
	return checkPlan(c)
}

// checkPlan checks that a plan has limits of its own or not, as it should, and sets the others'.
func checkPlan(c *invocation) error {
	c.plan = cmp.Or(c.plan, "free")
	if c.plan == "enterprise" {
		if c.quota.PerMinute == 0 || c.quota.PerDay == 0 {
			return usageErrorf("-plan enterprise needs -per-minute and -per-day")
		}
		return nil
	}
	if c.quota != (quota{}) {
		return usageErrorf("-per-minute and -per-day go with -plan enterprise only")
	}
	c.quota = plans[c.plan]
	return nil
}

// checkChange checks that there is a flag that says what to change.
func checkChange(c *invocation) error {
	changes := c.NFlag()
	if c.given("db") {
		changes--
	}
	if changes == 0 {
		return usageErrorf("%s needs a flag that says what to change; see %[1]s -h", c.Name())
	}
	return nil
}

func showFlags(c *invocation) {
	c.BoolVar(&c.json, "json", false, "print JSON in place of a table")
}

func usageFlags(c *invocation) {
	showFlags(c)
	c.numberFlag(&c.days, "days", 30, 1, maxDays, "show `N` days, today among them")
}

func rotateFlags(c *invocation) {
	c.durationFlag(&c.overlap, "overlap", "24h",
		"let the old key live on for this `DURATION`; 0 ends it at once")
}

func importFlags(c *invocation) {
	c.BoolVar(&c.again, "again", false,
		"import the same content once more; an import that was stopped goes on to its end,\n"+
			"and is not repeated")
}

func petSetFlags(c *invocation) {
	c.nameFlag(checkName)
	c.textFlag(&c.category, "category", "", "an integer of 64 bits", isInteger,
		"a category, any integer `N` of 64 bits")
	statusFlag(c)
}

func copyFlags(c *invocation) {
	c.numberFlag(&c.skipIDs, "skip-ids", 1_000_000, 0, maxQuota,
		"start new ids `N` above those that the copy holds, since clients may have seen ids\n"+
			"that it does not know; for the backup of a file it is 0\nunless it is given")
}

// parse reads the flags and the argument, in any order: petstore key set 5 -name x. What follows
// after -- is no flag.
func (c *invocation) parse(args []string) error {
	var arguments []string
	for {
		if err := c.Parse(args); err != nil {
			return err
		}
		rest := c.Args()
		read := len(args) - len(rest)
		if len(rest) == 0 || read > 0 && args[read-1] == "--" {
			arguments = append(arguments, rest...)
			break
		}
		arguments = append(arguments, rest[0])
		args = rest[1:]
	}
	return c.Parse(append([]string{"--"}, arguments...)) // from now on Args are all of them
}

// variableOf is the name of a flag's variable: -base-url is PETSTORE_BASE_URL.
func variableOf(flag string) string {
	return "PETSTORE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// readEnvironment sets those flags that the command line does not give and the environment does. An
// empty variable does not count.
func (c *invocation) readEnvironment(onlyDatabase bool) (err error) {
	c.VisitAll(func(f *flag.Flag) {
		if err != nil || c.given(f.Name) || onlyDatabase && f.Name != "db" {
			return
		}
		name := variableOf(f.Name)
		if f.Name == "test" && c.environ[name] == "" {
			name = "PETSTORE_STAGING" // what makes a staging instance makes its keys
		}
		value := c.environ[name]
		if value == "" {
			return
		}
		if problem := c.Set(f.Name, value); problem != nil {
			err = usageErrorf("invalid value %q for %s: %v", value, name, problem)
		}
	})
	return err
}

// given reports whether a flag was given, or its variable.
func (c *invocation) given(name string) (given bool) {
	c.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// parsedFlag declares a flag whose text a function takes, or says what is wrong with it. An empty
// default is none.
func (c *invocation) parsedFlag(name, value, usage string, take func(text string) error) {
	c.Func(name, usage, take)
	if value != "" {
		_ = take(value)
		c.Lookup(name).DefValue = value // which help shows
	}
}

// textFlag declares a flag whose text must pass a check; must says what it has to be.
func (c *invocation) textFlag(into *string, name, value, must string, check func(string) bool,
	usage string) {
	c.parsedFlag(name, value, usage, func(text string) error {
		*into = text
		if !check(text) {
			return errors.New("it must be " + must)
		}
		return nil
	})
}

// nameFlag declares -name; check returns what is wrong with it, or "". An empty one is more often
// an unset variable of a script than a wish.
func (c *invocation) nameFlag(check func(string) string) {
	c.parsedFlag("name", "", "a `NAME` of 1 to 200 characters", func(text string) error {
		c.name = text
		if problem := check(text); problem != "" {
			return errors.New("it " + problem)
		}
		return nil
	})
}

func statusFlag(c *invocation) {
	c.textFlag(&c.status, "status", "",
		"available, pending or sold", oneOf("available|pending|sold"),
		"a `STATUS`: available, pending or sold")
}

// numberFlag declares a flag that takes a decimal number from least to most: 0100 is 100. A default
// of 0 may be less.
func (c *invocation) numberFlag(into *int64, name string, value, least, most int64, usage string) {
	text := ""
	if value != 0 {
		text = strconv.FormatInt(value, 10)
	}
	c.parsedFlag(name, text, usage, func(text string) error {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("it must be a number from %d to %d", least, most)
		}
		*into = n
		return nil
	})
}

// durationFlag declares a flag that takes a duration of Go, such as 36h, or whole days, such as
// 90d: a second at least, or 0.
func (c *invocation) durationFlag(into *time.Duration, name, value, usage string) {
	c.parsedFlag(name, value, usage, func(text string) error {
		if number, isDays := strings.CutSuffix(text, "d"); isDays {
			days, err := strconv.ParseUint(number, 10, 16)
			if err == nil {
				text = fmt.Sprintf("%dh", 24*days)
			}
		}
		duration, err := time.ParseDuration(text)
		if err != nil || duration < time.Second && duration != 0 {
			return errors.New("it must be like 90d, 36h or 10m, at least 1s, or 0")
		}
		*into = duration
		return nil
	})
}

var sizeUnits = map[string]int64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

func (c *invocation) sizeFlag(into *int64, name, value, usage string) {
	c.parsedFlag(name, value, usage, func(text string) error {
		digits := strings.TrimRight(text, "KMGiB")
		n, err := strconv.ParseUint(digits, 10, 32)
		unit := sizeUnits[text[len(digits):]]
		if err != nil || unit == 0 {
			return errors.New("it must be like 16MiB, 500KiB, 1GiB or 65536, or 0")
		}
		*into = int64(n) * unit
		return nil
	})
}

// originsFlag declares a flag that may be repeated, and whose values may be separated by commas.
func (c *invocation) originsFlag(into *[]string, name, usage string) {
	c.parsedFlag(name, "", usage, func(text string) error {
		for origin := range strings.SplitSeq(text, ",") {
			if !isOrigin(origin) {
				return errors.New("it must be *, or as browsers send it, like " +
					"https://example.com: no path, default port or wildcard, and the host in " +
					"ASCII (punycode)")
			}
			*into = append(*into, origin)
		}
		return nil
	})
}

// oneOf is a check that all of a text matches a pattern.
func oneOf(pattern string) func(string) bool {
	return regexp.MustCompile("^(" + pattern + ")$").MatchString
}

func isPlan(s string) bool    { _, ok := plans[s]; return ok }
func isInteger(s string) bool { _, err := strconv.ParseInt(s, 10, 64); return err == nil }

// isCluster reports whether -db names the nodes of a cluster, and not a file.
func isCluster(db string) bool { return strings.Contains(db, "://") }

func isDatabase(s string) bool {
	if isCluster(s) {
		return nodeURLs(s) != nil
	}
	return s != ""
}

// httpURL parses an http or https URL without a query or fragment; it is nil for any other text.
func httpURL(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return nil
	}
	if u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil
	}
	return u
}

// nodeURLs are the addresses of a cluster's nodes, or none if one of them is wrong.
func nodeURLs(db string) (urls []*url.URL) {
	for address := range strings.SplitSeq(db, ",") {
		u := httpURL(strings.TrimSuffix(address, "/"))
		if u == nil || u.Port() == "" || u.Path != "" {
			return nil
		}
		urls = append(urls, u)
	}
	return urls
}

// databaseName is what -db names, without a password.
func databaseName(db string) string {
	if isCluster(db) {
		return regexp.MustCompile("[^/]*@").ReplaceAllString(db, "")
	}
	path, _ := filepath.Abs(db)
	return cmp.Or(path, db)
}

// isAddr takes a host, which may be empty, and a port.
func isAddr(s string) bool {
	_, port, err := net.SplitHostPort(s)
	_, unknown := net.LookupPort("tcp", port) //nolint:noctx // from a file at the most
	return err == nil && port != "" && unknown == nil
}

const mustBeURL = "an http or https URL ending in /v1"

// isBaseURL takes an http or https URL whose path ends in /v1, and which needs no escaping, since
// it is written into headers.
func isBaseURL(s string) bool {
	u := httpURL(s)
	return u != nil && u.User == nil && u.String() == s && strings.HasSuffix(s, "/v1")
}

// isOrigin takes * or a serialized origin that browsers send: scheme, host and perhaps a port, but
// not the default one.
func isOrigin(s string) bool {
	if s == "*" {
		return true
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || u.Hostname() == "" {
		return false
	}
	refused := regexp.MustCompile(`[^!-)+-~]|:$|^https:.*:0*443$|^http:.*:0*80$`)
	return s == strings.ToLower(u.Scheme+"://"+u.Host) && !refused.MatchString(s)
}

// newLogger writes to stderr. The format is text, json or, for what has no -log too, auto.
func newLogger(stderr io.Writer, format string, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	redacted := redactor{stderr}
	if format == "text" || format != "json" && isTerminal(stderr) {
		return slog.New(slog.NewTextHandler(redacted, options))
	}
	return slog.New(slog.NewJSONHandler(redacted, options))
}

func isTerminal(w io.Writer) bool {
	f, _ := w.(*os.File)
	info, err := f.Stat() // of nil, it is an error
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// progress shows on stderr how far long work has come, in one line: on a terminal it is written
// over itself, elsewhere it comes every five seconds. Work that ends sooner shows nothing.
type progress struct {
	w            io.Writer
	terminal     bool
	doing, unit  string // the unit "bytes" is shown as MB
	total        int64  // 0: unknown
	from         int64  // what was done before the start, which does not count for the rate
	start, shown time.Time
}

func (c *invocation) progress(doing, unit string, total int64) *progress {
	now := time.Now()
	return &progress{c.stderr, isTerminal(c.stderr), doing, unit, total, 0, now, now}
}

// show may be called often: on a terminal it writes at most five times a second.
func (p *progress) show(done int64) {
	every, format := 5*time.Second, "%s\n"
	if p.terminal {
		every, format = 200*time.Millisecond, "\r%s\x1b[K" // from the line's start, and to its end
	}
	now := time.Now()
	if now.Sub(p.shown) < every {
		return
	}
	p.shown = now
	// That it cannot be shown does not end the work.
	_, _ = fmt.Fprintf(p.w, format, p.line(done, now.Sub(p.start)))
}

// line tells the percentage, the amount, the rate and the time that is left, as far as they are
// known. A guess of weeks is none.
func (p *progress) line(done int64, took time.Duration) string {
	if p.total == 0 {
		return fmt.Sprintf("%s %s  %v", p.doing, amount(done, p.unit), took.Round(time.Second))
	}
	part := min(float64(done)/float64(p.total), 1)
	bar := ""
	if p.terminal {
		full := int(10 * part)
		bar = strings.Repeat("█", full) + strings.Repeat("░", 10-full) + " "
	}
	number, _, _ := strings.Cut(amount(done, p.unit), " ")
	rate := int64(float64(done-p.from) / took.Seconds())
	total := amount(p.total, p.unit)
	perSecond := amount(rate, p.unit) + "/s"
	text := fmt.Sprintf("%s %s%3.0f %%  %s of %s  %s",
		p.doing, bar, 100*part, number, total, perSecond)
	if rate > p.total/1_000_000 {
		left := max(p.total-done, 0) / rate
		text += fmt.Sprintf("  %v left", time.Duration(left)*time.Second)
	}
	return text
}

// end takes the line off the terminal.
func (p *progress) end() {
	if p.terminal && p.shown != p.start {
		_, _ = io.WriteString(p.w, "\r\x1b[K")
	}
}

// amount is a number for people: 1 pet, 5,000,000 pets, 188 MB.
func amount(n int64, unit string) string {
	if unit == "bytes" {
		n, unit = (n+999_999)/1_000_000, "MB"
	}
	if n == 1 {
		unit = strings.TrimSuffix(unit, "s")
	}
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits + " " + unit
}
