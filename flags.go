package main

// The configuration: the flags of each command, with their defaults, meaning, checks, and variables
// in the environment. This file also holds what a command is given to work with, and progress.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"
)

// usageError is a mistake on the command line or in the environment.
type usageError struct{ error }

func usageErrorf(format string, args ...any) error {
	return &usageError{error: fmt.Errorf(format, args...)}
}

// process is what a command may use of the process it runs in.
type process struct {
	environ        map[string]string // values by name
	stdin          io.Reader
	stdout, stderr io.Writer
}

// say writes a text to stdout.
func (p *process) say(text string) error {
	_, err := io.WriteString(p.stdout, text)
	return err
}

// syncStdout has the disk keep what was said, if stdout is a file.
func (p *process) syncStdout(ctx context.Context) error {
	out := p.stdout
	if f, ok := out.(front); ok {
		out = f.behind
	}
	file, _ := out.(*os.File)
	info, err := file.Stat() // if out is no file, file is nil, and its Stat returns an error
	isRegular := err == nil && info.Mode().IsRegular()
	if !isRegular {
		return nil
	}
	err = untilStopped(ctx, file.Sync)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return nil // there, no file can be synced
	}
	return err
}

// untilStopped returns what do returns, unless ctx ends first: do may wait for the other end of a
// pipe, and is left behind. Once ctx has ended, do is not begun.
func untilStopped(ctx context.Context, do func() error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// writerFunc is an io.Writer.
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// front is a writer that stands in front of another one, behind, so that nobody waits for the
// reader of that.
type front struct {
	io.Writer
	behind io.Writer
}

// stoppable is a writer that waits for the reader of w until ctx ends.
func stoppable(ctx context.Context, w io.Writer) io.Writer {
	write := func(p []byte) (int, error) {
		text := bytes.Clone(p) // a write that is left behind goes on reading it
		err := untilStopped(ctx, func() error {
			_, err := w.Write(text)
			return err
		})
		if err != nil {
			return 0, err
		}
		return len(p), nil
	}
	return front{Writer: writerFunc(write), behind: w}
}

// readerLeft reports whether an error is that of a file, such as stdout, whose reader has left, as
// head(1) does.
func readerLeft(err error) bool {
	_, ofFile := errors.AsType[*os.PathError](err) // and not of a connection
	return ofFile && errors.Is(err, syscall.EPIPE)
}

// invocation is one run of a command. The FlagSet holds the command's name and its flags.
type invocation struct {
	*process
	*flag.FlagSet
	config

	idOf     string            // what the argument is the id of: "key", "pet", or "" for none
	texts    map[string]string // given to parsed flags, by name
	argument string            // such as a FILE or an ID, or "" if there is none

	arguments []string // the same, of a command that takes several
	dbError   error    // what is wrong with -db, if the value must not be shown
	now       instant
	log       *slog.Logger // on stderr
	// started is closed when a service is open. A stop waits for the service from then on; before,
	// it leaves behind a start that does not heed it, as on a disk that hangs.
	started chan struct{}

	store *store // nil in a command that opens no database
	id    int64  // the id of the key or the pet that the argument names, or 0
	key   apiKey // the key with this id, in a command about a key
}

// config is what the flags say.
type config struct {
	// These are the flags of the service.
	settings
	addr, db, debugAddr, tlsCert, tlsKey, logFormat string

	debugAllowRemote bool
	idleTimeout      time.Duration
	cache            int64 // bytes
	logLevel         slog.Level

	// These are flags of commands. newName is -name; Name is the command's.
	plan, newName     string
	quota             quota // of -per-minute and -per-day
	expires, overlap  time.Duration
	test, json, again bool
	keepIDs           bool
	skipIDs, days     int64
	pet               NewPet // what pet set changes, and pet export selects; its name is newName
}

// unknownID is the error of an argument that is the id of no key, or of no pet.
func (c *invocation) unknownID() error {
	return fmt.Errorf("no %s has the id %s", c.idOf, c.argument)
}

func serveFlags(cmd *invocation) {
	cmd.textFlag(&cmd.addr, "addr", "localhost:8080", checkAddr,
		"listen on `HOST:PORT`; port 0 takes a free one")
	cmd.textFlag(&cmd.baseURL, "base-url", "", checkBaseURL,
		"the public `URL` of the service, ending in /v1, for Location and Link;\n"+
			"without it they are paths, which are correct behind any proxy")
	cmd.textFlag(&cmd.stagingURL, "staging-url", "", checkBaseURL,
		"the public `URL` of the staging environment, ending in /v1, for /openapi.json")
	cmd.boolFlag(&cmd.staging, "staging",
		"be a staging instance: issue and take only pet_test_ keys")
	cmd.durationFlag(&cmd.banFor, "ban-for", "10m",
		"ban a key for this `DURATION` when its client insists after 429;\n0 turns bans off")
	cmd.parsedFlag("cache", "16MiB",
		"keep this `SIZE` of pages and pets in memory, such as 64MiB, or 0 for none;\n"+
			"the process takes up to twice as much", cmd.setCache)
	cmd.textFlag(&cmd.clientIPHeader, "client-ip-header", "",
		mustMatch(`[A-Za-z0-9-]+`, "the name of a header"),
		"the `HEADER` in which your proxy names the caller, such as X-Forwarded-For;\n"+
			"only its rightmost entry counts")
	cmd.parsedFlag("cors-origin", "",
		"let pages of this `ORIGIN` call the service, such as https://example.com, or *;\n"+
			"repeat it for more, or separate them by commas", cmd.addOrigins)
	cmd.parsedFlag("idle-timeout", "2m",
		"end a connection that has been idle for this `DURATION`, at least 1s;\n"+
			"let it be longer than your proxy keeps its connections", cmd.setIdleTimeout)
	cmd.StringVar(&cmd.tlsCert, "tls-cert", "",
		"the `FILE` with a certificate (PEM); with -tls-key it turns TLS and HTTP/2 on")
	cmd.StringVar(&cmd.tlsKey, "tls-key", "", "the `FILE` with the private key (PEM)")
	cmd.textFlag(&cmd.logFormat, "log", "auto",
		mustMatch("text|json|auto", "text, json or auto"),
		"the `FORMAT` of the log on stderr: text, json, or auto,\n"+
			"which is text on a terminal and json elsewhere")
	cmd.parsedFlag("log-level", "info",
		"log from this `LEVEL` on: debug (a line for each request), info,\nwarn or error",
		cmd.setLogLevel)
	cmd.textFlag(&cmd.debugAddr, "debug-addr", "", checkAddr,
		"serve on `HOST:PORT`, without keys, a page that shows how the service is doing,\n"+
			"and /metrics, /healthz, /readyz and /debug/pprof/")
	cmd.boolFlag(&cmd.debugAllowRemote, "debug-allow-remote",
		"let -debug-addr be reached from other machines")
}

// checkServe checks the flags of the service that concern one another.
func checkServe(cmd *invocation) error {
	if (cmd.tlsCert == "") != (cmd.tlsKey == "") {
		return errors.New("-tls-cert and -tls-key go together")
	}
	if cmd.debugAddr == "" || cmd.debugAllowRemote {
		return nil
	}
	host, _, _ := net.SplitHostPort(cmd.debugAddr)
	if host == "localhost" || net.ParseIP(host).IsLoopback() {
		return nil
	}
	return fmt.Errorf("-debug-addr %s can be reached from other machines, without a key; "+
		"say 127.0.0.1, or add -debug-allow-remote", cmd.debugAddr)
}

// databaseFlag declares -db, which every command has.
func databaseFlag(cmd *invocation) {
	cmd.parsedFlag("db", "petstore.db",
		"the `DATABASE`: a file, which serve, key create and restore make if there is none,\n"+
			"or the addresses of an rqlite cluster, separated by commas, such as\n"+
			"http://10.0.0.1:4001,http://10.0.0.2:4001", cmd.setDatabase)
}

func keyCreateFlags(cmd *invocation) {
	keyFlags(cmd)
	cmd.boolFlag(&cmd.test, "test",
		"make a pet_test_ key, for a staging instance")
}

// keyFlags declares what can be said of a key, when it is made and later.
func keyFlags(cmd *invocation) {
	names := planNames()
	// The pattern is made of the list: "free, pro" becomes free|pro.
	cmd.textFlag(&cmd.plan, "plan", "",
		mustMatch(strings.ReplaceAll(names, ", ", "|"), "one of "+names),
		"the `PLAN`, one of "+names+"; a new key is "+freePlan+" without it")
	cmd.numberFlag(&cmd.quota.PerMinute, "per-minute", "", 1, maxQuota,
		"a limit of `N` requests a minute, for -plan enterprise")
	cmd.numberFlag(&cmd.quota.PerDay, "per-day", "", 1, maxQuota,
		"a limit of `N` requests a day, for -plan enterprise")
	nameFlag(cmd, checkKeyName)
	cmd.durationFlag(&cmd.expires, "expires", "",
		"let the key end after this `DURATION`, such as 90d; 0 is never")
}

// maxQuota is the largest integer of RFC 9651, in which limits are reported.
const maxQuota = 999_999_999_999_999

// planNames lists the plans for people.
func planNames() string {
	var names []string
	for _, p := range plans {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

// checkKeyName returns what is wrong with the name of a key, or "". Keys are shown to operators
// side by side, and no name may make another one, or an id, look like what it is not.
func checkKeyName(name string) string {
	turns := func(c rune) bool { return unicode.Is(unicode.Bidi_Control, c) }
	if strings.ContainsFunc(name, turns) {
		return "must not hold characters that change the direction of the text"
	}
	return checkName(name)
}

// checkLimits checks that limits are given for the enterprise plan only. A key that comes to this
// plan needs both; one that has it already can change one of them.
func checkLimits(cmd *invocation) error {
	// A key that is being made has no plan yet. Without -plan it will not be an enterprise key.
	plan := cmp.Or(cmd.plan, cmd.key.Plan)
	if plan != enterprisePlan && cmd.quota != (quota{}) {
		return errors.New("-per-minute and -per-day go with -plan enterprise only")
	}
	needsBoth := plan == enterprisePlan && cmd.key.Plan != enterprisePlan
	if needsBoth && (cmd.quota.PerMinute == 0 || cmd.quota.PerDay == 0) {
		return errors.New("-plan enterprise needs -per-minute and -per-day")
	}
	return nil
}

// checkChange checks that there is a flag that says what to change.
func checkChange(cmd *invocation) error {
	if len(cmd.changes()) == 0 {
		return fmt.Errorf("%s needs a flag that says what to change", cmd.Name())
	}
	return nil
}

// changes are the flags that say what to change, and their values, as attributes of a log line.
func (c *invocation) changes() (attributes []any) {
	c.Visit(func(f *flag.Flag) {
		if f.Name != "db" {
			attributes = append(attributes, f.Name, c.texts[f.Name])
		}
	})
	return attributes
}

func showFlags(cmd *invocation) {
	cmd.boolFlag(&cmd.json, "json", "print JSON in place of a table")
}

func usageFlags(cmd *invocation) {
	showFlags(cmd)
	cmd.numberFlag(&cmd.days, "days", "30", 1, maxDays, "show `N` days, today among them")
}

func rotateFlags(cmd *invocation) {
	cmd.durationFlag(&cmd.overlap, "overlap", "24h",
		"let the old key live on for this `DURATION`; 0 ends it at once")
}

func importFlags(cmd *invocation) {
	cmd.boolFlag(&cmd.again, "again",
		"add the pets once more if an import of the same content has ended;\n"+
			"an import that was stopped goes on to its end, and adds no pet twice")
	cmd.boolFlag(&cmd.keepIDs, "keep-ids",
		"bring deleted pets back: give each the id of its line, which no other pet has")
}

func petSetFlags(cmd *invocation) {
	nameFlag(cmd, checkName)
	cmd.numberFlag(&cmd.pet.CategoryID, "category", "", math.MinInt64, math.MaxInt64,
		"a category, any integer `N` of 64 bits")
	statusFlag(cmd)
}

func copyFlags(cmd *invocation) {
	// maxQuota serves here only as a large number.
	cmd.numberFlag(&cmd.skipIDs, "skip-ids", "1000000", 0, maxQuota,
		"start new ids `N` above those that the copy holds, since clients may have seen ids\n"+
			"that it does not know; a backup of a file skips none unless\nthis flag is given")
}

// nameFlag declares -name. An empty name is refused, because it is more often an unset variable of
// a script than a wish.
func nameFlag(cmd *invocation, check func(string) string) {
	cmd.textFlag(&cmd.newName, "name", "", check, "a `NAME` of 1 to 200 characters")
}

func statusFlag(cmd *invocation) {
	cmd.textFlag((*string)(&cmd.pet.Status), "status", "",
		mustMatch("available|pending|sold", "available, pending or sold"),
		"a `STATUS`: available, pending or sold")
}

// given reports whether a flag was given, or its variable.
func (c *invocation) given(name string) (given bool) {
	c.Visit(func(f *flag.Flag) {
		if f.Name == name {
			given = true
		}
	})
	return given
}

// parsedFlag declares a flag that a function reads: it keeps what a text says, or says what is
// wrong with it. A default of "" is none.
func (c *invocation) parsedFlag(name, value, usage string, read func(text string) error) {
	c.Func(name, usage, func(text string) error {
		c.texts[name] = text
		return read(text)
	})
	if value != "" {
		_ = read(value)
		c.Lookup(name).DefValue = value // for help
	}
}

// textFlag declares a flag whose text must pass a check, which returns what is wrong, or "".
func (c *invocation) textFlag(into *string, name, value string, check func(string) string,
	usage string) {
	c.parsedFlag(name, value, usage, func(text string) error {
		*into = text
		if problem := check(text); problem != "" {
			return errors.New("it " + problem)
		}
		return nil
	})
}

// numberFlag declares a flag that takes a decimal number from least to most: 0100 is 100.
func (c *invocation) numberFlag(into *int64, name, value string, least, most int64, usage string) {
	c.parsedFlag(name, value, usage, func(text string) error {
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
		duration, err := parseDuration(text)
		if err != nil || duration < time.Second && duration != 0 {
			return errors.New(
				"it must be a number of d, h, m or s, such as 90d: at least a second, or 0")
		}
		*into = duration
		return nil
	})
}

// setIdleTimeout reads -idle-timeout. For net/http, 0 would be another time.
func (c *invocation) setIdleTimeout(text string) (err error) {
	c.idleTimeout, err = parseDuration(text)
	if err != nil || c.idleTimeout < time.Second {
		return errors.New("it must be a number of d, h, m or s, such as 10m: at least a second")
	}
	return nil
}

func parseDuration(text string) (time.Duration, error) {
	number, isDays := strings.CutSuffix(text, "d")
	if !isDays {
		return time.ParseDuration(text)
	}
	// A Duration has room for the largest number of 16 bits, in days.
	days, err := strconv.ParseUint(number, 10, 16)
	return time.Duration(days) * 24 * time.Hour, err
}

// boolFlag declares a flag that is set or not.
func (c *invocation) boolFlag(into *bool, name, usage string) {
	c.BoolFunc(name, usage, func(text string) (err error) {
		*into, err = strconv.ParseBool(text)
		if err != nil {
			return errors.New("it must be true or false")
		}
		return nil
	})
}

// setLogLevel reads -log-level, in capital letters too.
func (c *invocation) setLogLevel(text string) error {
	if c.logLevel.UnmarshalText([]byte(text)) != nil {
		return errors.New("it must be debug, info, warn or error")
	}
	return nil
}

// setCache reads -cache, a number of mebibytes such as 16MiB, or 0.
func (c *invocation) setCache(text string) error {
	number, hasUnit := strings.CutSuffix(text, "MiB")
	mebibytes, err := strconv.ParseUint(number, 10, 20) // a TiB at most
	lacksUnit := !hasUnit && text != "0"
	if err != nil || lacksUnit {
		return errors.New("it must be like 16MiB, or 0")
	}
	c.cache = int64(mebibytes) << 20
	return nil
}

// hostPattern is a name, or an IP address.
const hostPattern = `([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])`

// checkBaseURL takes a URL that needs no escaping, since it is written into headers.
var checkBaseURL = mustMatch("https?://"+hostPattern+"(:[0-9]+)?(/[A-Za-z0-9._~-]+)*/v1",
	"an http or https URL ending in /v1")

// Browsers send a scheme, a host and perhaps a port (RFC 6454, section 6.2). neverSent matches what
// they write in another way: capital letters, the port 443 of https, and the port 80 of http.
var (
	originPattern = regexp.MustCompile("^[a-z][a-z0-9+.-]*://" + hostPattern + "(:[0-9]+)?$")
	neverSent     = regexp.MustCompile("[A-Z]|^https:.*:443$|^http:.*:80$")
)

// addOrigins reads -cors-origin, which may be repeated, and may have several values. The value *
// stands for all origins, and is none itself.
func (c *invocation) addOrigins(text string) error {
	for origin := range strings.SplitSeq(text, ",") {
		isOrigin := originPattern.MatchString(origin) && !neverSent.MatchString(origin)
		if !isOrigin && origin != "*" {
			return errors.New("it must be *, or as browsers send it, like https://example.com: " +
				"no capital letter, path, default port or wildcard; the host in ASCII (punycode)")
		}
		c.corsOrigins = append(c.corsOrigins, origin)
	}
	return nil
}

// mustMatch is a check that all of a text matches a pattern. The description says what it must be.
func mustMatch(pattern, description string) func(string) string {
	whole := regexp.MustCompile("^(" + pattern + ")$")
	return func(text string) string {
		if whole.MatchString(text) {
			return ""
		}
		return "must be " + description
	}
}

// isCluster reports whether -db names the nodes of a cluster, and not a file.
func isCluster(db string) bool { return strings.Contains(db, "://") }

// setDatabase reads -db. An error that it returns is shown together with the text. If a password
// may stand in the text, the error is left in dbError.
func (c *invocation) setDatabase(text string) error {
	c.db = text
	problem := databaseProblem(text)
	if problem == "" {
		return nil
	}
	if strings.Contains(text, "@") {
		c.dbError = fmt.Errorf("invalid value for flag -db or for PETSTORE_DB, "+
			"which is not shown, as it may hold a password: it %s", problem)
		return nil
	}
	return errors.New("it " + problem)
}

// databaseProblem returns what is wrong with a text as that of -db, or "". Files of settings that
// are read by one program with quotes and line ends of its own are passed on by another as they
// are: a database of such a name would be a new one.
func databaseProblem(text string) string {
	switch {
	case strings.ContainsFunc(text, unicode.IsControl):
		return "must hold no control character, such as the end of a line of Windows"
	case isQuoted(text):
		return "must stand without the quotes"
	case !isDatabase(text):
		return "must be a file, or addresses like http://10.0.0.1:4001, separated by commas"
	}
	return ""
}

// isQuoted reports whether a pair of quotes encloses a text.
func isQuoted(text string) bool {
	return len(text) > 1 && text[0] == text[len(text)-1] && strings.Contains(`'"`, text[:1])
}

// driveLetter begins a path on Windows.
var driveLetter = regexp.MustCompile(`^[A-Za-z]:[\\/]`)

// isDatabase reports whether a text can be that of -db. Any name can be that of a file. But one
// with a colon before an @ is taken for a misspelt address with a user and a password, unless there
// is such a file: a password must not become the name of a file, or be shown as a part of one.
func isDatabase(text string) bool {
	if isCluster(text) {
		return nodeURLs(text) != nil
	}
	path := driveLetter.ReplaceAllString(text, "")
	_, afterColon, _ := strings.Cut(path, ":")
	if strings.Contains(afterColon, "@") {
		_, err := os.Stat(text)
		return err == nil
	}
	return text != ""
}

// nodeURL matches the address of a node, perhaps with a user and a password.
var nodeURL = regexp.MustCompile("^https?://([^/?#@]*@)?" + hostPattern + ":[0-9]+/?$")

// nodeURLs are the addresses of a cluster's nodes, or none if one of them is wrong.
func nodeURLs(db string) (urls []*url.URL) {
	for address := range strings.SplitSeq(db, ",") {
		u, err := url.Parse(address)
		if err != nil || !nodeURL.MatchString(address) {
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

// checkAddr takes a host, which may be empty, and a port.
func checkAddr(text string) string {
	_, port, _ := net.SplitHostPort(text) // after an error, the port is ""
	_, err := net.LookupPort("tcp", port)
	if port == "" || err != nil {
		return "must be HOST:PORT"
	}
	return ""
}

// isTerminal reports whether a writer is a terminal, or another device of characters.
func isTerminal(w io.Writer) bool {
	if f, ok := w.(front); ok {
		w = f.behind
	}
	file, _ := w.(*os.File)
	info, err := file.Stat() // if w is no file, file is nil, and its Stat returns an error
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// progress shows how far a long task has come: on a terminal in one line that is written over
// itself five times a second, elsewhere in a line every five seconds. Work that ends sooner shows
// nothing.
type progress struct {
	out         io.Writer
	doing, unit string
	total       int64        // 0: unknown
	done        atomic.Int64 // apart from mu: the work does not wait for whoever reads the lines
	start       time.Time
	terminal    bool

	mu    sync.Mutex // guards what follows; it is held while a line is written
	erase string     // takes the line that is shown off the terminal
	ended bool
}

// startProgress begins to show. The caller must call end.
func startProgress(w io.Writer, doing, unit string, total int64) *progress {
	p := &progress{
		out:      w,
		doing:    doing,
		unit:     unit,
		total:    total,
		start:    time.Now(),
		terminal: isTerminal(w),
	}
	p.showLater()
	return p
}

// showLater calls show after a pause.
func (p *progress) showLater() {
	pause := 5 * time.Second
	if p.terminal {
		pause = time.Second / 5
	}
	time.AfterFunc(pause, p.show)
}

// show writes a line, unless the work has ended. A failed write does not matter.
func (p *progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	format := "%s\n"
	if p.terminal {
		format = "\r%s\x1b[K"
		p.erase = "\r\x1b[K"
	}
	_, _ = fmt.Fprintf(p.out, format, p.line())
	p.showLater()
}

// end takes the line off the terminal. Once it has returned, nothing more is written.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	_, _ = io.WriteString(p.out, p.erase)
}

// line tells the percentage, the rate and the time that is left or, while they are unknown, the
// time that has passed.
func (p *progress) line() string {
	took := time.Since(p.start)
	// Pets that are added during an export may bring done above the total. A total of 0, which is
	// unknown, makes done 0.
	done := min(p.done.Load(), p.total)
	if done == 0 {
		return fmt.Sprintf("%s  %v", p.doing, took.Round(time.Second))
	}
	percent := 100 * done / p.total
	perSecond := float64(done) / took.Seconds()
	secondsLeft := float64(p.total-done) / perSecond
	left := time.Duration(secondsLeft) * time.Second
	text := fmt.Sprintf("%3d %% of %d %s  %.0f/s  %v left",
		percent, p.total, p.unit, perSecond, left)
	if p.terminal {
		tenths := int(percent / 10)
		text = strings.Repeat("█", tenths) + strings.Repeat("░", 10-tenths) + " " + text
	}
	return p.doing + " " + text
}
