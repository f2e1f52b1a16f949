package main

// The command line: one table of all verbs, the declaration of every flag, its twin in the environment, help
// and usage errors; and what each verb does, except for serving, which is main.go's.

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

// usageError is a mistake on the command line or in the environment.
type usageError struct{ error }

func usageErrorf(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// process is what a command may use of the process it runs in.
type process struct {
	environ        []string // NAME=value
	stdin          io.Reader
	stdout, stderr io.Writer
}

// say writes a text to stdout.
func (p *process) say(text string) error { _, err := io.WriteString(p.stdout, text); return err }

// command is one verb. web/manual.txt tells what it does, and which flags and argument it takes.
type command struct {
	name    string
	purpose purpose // of opening the database
	run     func(ctx context.Context, c *invocation) error
}

// commands are all verbs, in the order that help shows.
var commands = []command{
	{"serve", forNothing, nil}, // main.go does it
	{"key create", forNewKey, keyCreate},
	{"key list", forCommand, keyList},
	{"key show", forCommand, keyShow},
	{"key usage", forCommand, keyUsage},
	{"key set", forCommand, keySet},
	{"key rotate", forCommand, keyRotate},
	{"key revoke", forCommand, keyRevoke},
	{"key unban", forCommand, keyUnban},
	{"pet import", forCommand, petImport},
	{"pet export", forCommand, petExport},
	{"pet set", forCommand, petSet},
	{"pet delete", forCommand, petDelete},
	{"backup", forCommand, backup},
	{"restore", forNothing, restore},
	{"version", forNothing, func(_ context.Context, c *invocation) error { return c.say(version() + "\n") }},
	{"help", forNothing, nil}, // runCommand does it
}

// section is what web/manual.txt says of a verb, which is its synopsis, a line, and more, or of a flag, and the value
// that the flag takes.
func section(name string) (value, text string) {
	pattern := regexp.MustCompile(`(?s)\n# ` + name + `( [A-Z:]+)?\n(.*?)\n+(# |$)`)
	match := pattern.FindStringSubmatch("\n" + webFile("manual.txt"))
	return match[1], match[2]
}

// help is the text of petstore help.
func help() string {
	all := "A pet store: an API over HTTP with keys and limits, and its database.\n\n"
	for _, cmd := range commands {
		_, text := section(cmd.name)
		all += fmt.Sprintf("  petstore %-12s %s\n", cmd.name, strings.Split(text, "\n\n")[1])
	}
	return all + "\nWithout a verb it serves. petstore help VERB, or -h after a verb, tells all of it.\n"
}

// help is the text of petstore help VERB, and of -h after the verb.
func (c *invocation) help(text string) string {
	c.VisitAll(func(f *flag.Flag) {
		value, usage := section("-" + f.Name)
		text += fmt.Sprintf("\n\n  -%s%s\n        %s", f.Name, value, strings.ReplaceAll(usage, "\n", "\n        "))
	})
	_, rest := section("every verb")
	return text + "\n\n" + rest + "\n"
}

// invocation is one run of a command.
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

// runCommand runs the verb that args begin with; serve is what the server does.
func runCommand(ctx context.Context, args []string, p *process, serve func(context.Context, *invocation) error) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		args = append([]string{"serve"}, args...)
	} else if args[0] == "help" && !regexp.MustCompile("^--?h(elp)?$").MatchString(strings.Join(args[1:], " ")) {
		args = append(args[1:], "-h")
	}
	var all string
	for _, cmd := range commands {
		if words := strings.Fields(cmd.name); slices.Equal(words, args[:min(len(words), len(args))]) {
			if cmd.run == nil {
				cmd.run = serve
			}
			return cmd.invoke(ctx, args[len(words):], p)
		}
		all += ", " + cmd.name
	}
	asked := slices.Contains([]string{"help", "-h", "-help", "--help"}, args[len(args)-1])
	if asked && (len(args) == 1 || len(args) == 2 && strings.Contains(all, ", "+args[0]+" ")) { // key is half a verb
		return p.say(help())
	}
	return usageErrorf("no command %q; there are %s; petstore without a command serves",
		strings.TrimSuffix(strings.Join(args[:min(2, len(args))], " "), " -h"), all[2:])
}

// invoke parses the flags of a verb, opens the database and runs the verb.
func (cmd *command) invoke(ctx context.Context, args []string, p *process) (err error) {
	c := &invocation{process: p, now: instantOf(time.Now())}
	_, text := section(cmd.name)
	synopsis, _, _ := strings.Cut(text, "\n\n")
	unknown, err := c.parse(cmd.name, synopsis, args)
	if errors.Is(err, flag.ErrHelp) {
		return p.say(c.help(text))
	}
	if err == nil {
		err = c.check(synopsis) // before the database is opened, or made
	}
	if err != nil {
		return err
	}
	c.log = newLogger(p.stderr, c.logFormat, c.logLevel)
	for _, name := range unknown {
		c.log.Warn("unknown environment variable; petstore help VERB lists the flags, and each has its variable",
			"variable", name)
	}
	if cmd.purpose != forNothing || isCluster(c.db) && cmd.name == "restore" {
		_, missing := os.Stat(c.db)
		c.made = missing != nil && !isCluster(c.db)
		if c.store, err = openStore(ctx, c.db, cmd.purpose, c.log); err == nil {
			defer c.store.Close()
		}
	}
	if err == nil && c.NArg() == 1 && strings.HasPrefix(cmd.name, "key") {
		err = c.findKey(ctx)
	}
	if err == nil {
		err = cmd.run(ctx, c)
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("stopped by a signal: %w", err)
	}
	return err
}

// errExportCut is the error of an export whose reader has left. Nobody needs a message then.
var errExportCut = errors.New("the reader of stdout has left")

// readerLeft reports whether an error is that of a file, such as stdout, whose reader has left, as head(1) does.
func readerLeft(err error) bool {
	_, ofFile := errors.AsType[*os.PathError](err) // and not of a connection
	return ofFile && errors.Is(err, syscall.EPIPE)
}

// given reports whether a flag was given, or its variable.
func (c *invocation) given(name string) (given bool) {
	c.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// check checks the argument, which a synopsis ends with, such as ID, or [ID] if it may be left out, and the
// flags. It derives the quota from them, and reads the certificate.
func (c *invocation) check(synopsis string) error {
	argument := regexp.MustCompile(`\s\[?[A-Z]+\]?$`).FindString(synopsis)
	if n := c.NArg(); n > 1 || n == 1 && argument == "" {
		return usageErrorf("unexpected argument %q; see %s -h", c.Arg(min(1, n-1)), c.Name())
	}
	if c.NArg() == 0 && argument != "" && argument[1] != '[' {
		return usageErrorf("%s needs %s; see %[1]s -h", c.Name(), argument[1:])
	}
	problem := checkName(c.name)
	if strings.HasPrefix(c.Name(), "petstore key ") {
		problem = checkKeyName(c.name)
	}
	host, _, _ := net.SplitHostPort(c.debugAddr)
	switch {
	case strings.HasSuffix(c.Name(), " set") && (c.NFlag() == 0 || c.NFlag() == 1 && c.given("db")):
		return usageErrorf("%s needs a flag that says what to change; see %[1]s -h", c.Name())
	case (c.name != "" || strings.HasSuffix(c.Name(), " set") && c.given("name")) && problem != "":
		return usageErrorf("-name %s", problem)
	case c.skipIDs < 0 || c.skipIDs > maxQuota:
		return usageErrorf("-skip-ids must be from 0 to %d", int64(maxQuota))
	case c.days < 1 || c.days > maxDays:
		return usageErrorf("-days must be from 1 to %d", maxDays)
	case c.replace && !isCluster(c.db):
		return usageErrorf("-replace goes with a cluster; the old file of a database is always kept")
	case (c.tlsCert == "") != (c.tlsKey == ""):
		return usageErrorf("-tls-cert and -tls-key go together")
	case c.debugAddr != "" && host != "localhost" && !net.ParseIP(host).IsLoopback() && !c.debugAllowRemote:
		return usageErrorf("-debug-addr %s can be reached from other machines, without a key; say localhost, or add "+
			"-debug-allow-remote", c.debugAddr)
	}
	if err := c.checkQuota(); err != nil {
		return err
	}
	if c.tlsCert != "" {
		cert, err := tls.LoadX509KeyPair(c.tlsCert, c.tlsKey)
		if err != nil {
			return fmt.Errorf("cannot use -tls-cert and -tls-key: %w", err)
		}
		c.tls = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	return nil
}

// checkQuota checks -per-minute and -per-day, and derives the quota from the plan. Whether key set may change one
// limit alone is known when the key is read.
func (c *invocation) checkQuota() error {
	q := c.quota
	if c.Name() == "petstore key set" && !c.given("plan") {
		if c.given("per-minute") && q.PerMinute < 1 || c.given("per-day") && q.PerDay < 1 || max(q.PerMinute, q.PerDay) > maxQuota {
			return usageErrorf("-per-minute and -per-day must be from 1 to %d", int64(maxQuota))
		}
		return nil
	}
	if c.plan == "enterprise" {
		if min(q.PerMinute, q.PerDay) < 1 || max(q.PerMinute, q.PerDay) > maxQuota {
			return usageErrorf("-plan enterprise needs -per-minute and -per-day, each from 1 to %d", int64(maxQuota))
		}
		return nil
	}
	if q != (quota{}) {
		return usageErrorf("-per-minute and -per-day go with -plan enterprise only")
	}
	c.quota = plans[c.plan]
	return nil
}

// openStore opens the database that -db names.
func openStore(ctx context.Context, db string, p purpose, log *slog.Logger) (s *store, err error) {
	var e engine
	if isCluster(db) {
		e, err = openRqlite(ctx, parseCluster(db), p, log)
		db = "on " + databaseName(db)
	} else {
		e, err = openSQLite(ctx, db, p)
	}
	if err == nil && p != forNothing {
		if err = updateSchema(ctx, e, p != forCommand || !e.shared()); err == nil {
			_, err = e.changed(ctx) // from here on, what others write is news
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the database %s: %w", db, errors.Join(err, e.Close()))
	}
	return newStore(e), nil
}

// databaseName is what -db names, without a password.
func databaseName(db string) string {
	if isCluster(db) {
		return regexp.MustCompile("[^/]*@").ReplaceAllString(db, "")
	}
	path, _ := filepath.Abs(db)
	return cmp.Or(path, db)
}

// findKey reads the key that the command line names.
func (c *invocation) findKey(ctx context.Context) error {
	id, _ := strconv.ParseInt(c.Arg(0), 10, 64) // no key has the id 0
	keys, err := readKeys(ctx, c.store, c.now, "WHERE k.id = ?", id)
	if err != nil || len(keys) == 0 {
		return cmp.Or(err, fmt.Errorf("no key has the id %s", c.Arg(0)))
	}
	c.key = *keys[0]
	return nil
}

// errNotStored is added to an error when a key was printed but could not be stored.
var errNotStored = errors.New("the key that was printed is not stored and opens nothing")

// issue prints a new key in the place of $KEY, and then lets store keep it: one that
// nobody has seen must not stay behind.
func issue(stdout io.Writer, text string, test bool, store func(secret) (id int64, err error)) (id int64, err error) {
	token := newSecret(test)
	if _, err := io.WriteString(stdout, strings.ReplaceAll(text, "$KEY", string(token))); err != nil {
		return 0, fmt.Errorf("no key was made, since it cannot be shown: %v", err) //nolint:errorlint // no reader that left
	}
	if id, err = store(token); errors.Is(err, errOutcome) {
		err = fmt.Errorf("the key that was printed may be stored or not; petstore key list tells: %w", err)
	} else if err != nil {
		err = fmt.Errorf("%w: %w", errNotStored, err)
	}
	return id, err
}

func keyCreate(ctx context.Context, c *invocation) error {
	key := &apiKey{Name: c.name, Plan: c.plan, account: account{quota: c.quota}, Test: c.test, CreatedAt: c.now,
		lifetime: instant(c.expires.Milliseconds())}
	id, err := issue(c.stdout, "$KEY\n", c.test, func(token secret) (int64, error) {
		return insertKey(ctx, c.store, key, token, false)
	})
	return c.report(err, "key created", "id", id, "name", c.name, "plan", c.plan,
		"database", databaseName(c.db), "newDatabase", c.made)
}

// keySet changes what is given of a key. One limit of an Enterprise key can change alone.
func keySet(ctx context.Context, c *invocation) error {
	if !c.given("plan") && c.quota != (quota{}) && c.key.Plan != "enterprise" {
		return usageErrorf("-per-minute and -per-day go with -plan enterprise only; key %d has the plan %s", c.key.ID,
			c.key.Plan)
	}
	changes := map[string]any{}
	attributes := []any{"id", c.key.ID}
	if c.given("plan") {
		changes["plan"] = c.plan
		attributes = append(attributes, "plan", c.plan)
	}
	if c.quota.PerMinute != 0 {
		changes["perMinute"] = c.quota.PerMinute
		attributes = append(attributes, "perMinute", c.quota.PerMinute)
	}
	if c.quota.PerDay != 0 {
		changes["perDay"] = c.quota.PerDay
		attributes = append(attributes, "perDay", c.quota.PerDay)
	}
	if c.given("name") {
		changes["name"] = c.name
		attributes = append(attributes, "name", c.name)
	}
	if c.given("expires") {
		changes["lifetime"] = c.expires.Milliseconds()
		attributes = append(attributes, "expires", c.expires)
	}
	changed, err := c.edit(ctx, changeKey(c.key.ID, c.now, changes))
	if err == nil && !changed {
		err = fmt.Errorf("key %d is revoked; make a new one with petstore key create", c.key.ID)
	}
	return c.report(err, "key changed", attributes...)
}

func keyRevoke(ctx context.Context, c *invocation) error {
	if c.key.RevokedAt != 0 {
		return c.report(nil, "key was revoked already", "id", c.key.ID, "at", c.key.RevokedAt.time())
	}
	_, err := c.edit(ctx, revokeKey(c.key.ID, c.now))
	return c.report(err, "key revoked", "id", c.key.ID)
}

func keyUnban(ctx context.Context, c *invocation) error {
	if c.key.BannedUntil == 0 {
		return c.report(nil, "key is not banned", "id", c.key.ID)
	}
	_, err := c.edit(ctx, unban(c.key.usageID, c.now))
	return c.report(err, "key unbanned", "id", c.key.ID)
}

// edit runs a statement that changes a key or a pet, and reports whether there was one to change.
func (c *invocation) edit(ctx context.Context, change statement) (changed bool, err error) {
	results, err := c.store.edit(ctx, change)
	if err != nil {
		return false, err
	}
	return results[0].affected > 0, nil
}

// report logs what a command did, unless it failed.
func (c *invocation) report(err error, message string, attributes ...any) error {
	if err == nil {
		c.log.Info(message, attributes...)
	}
	return err
}

// keyRotate makes a successor that is charged to the same usage, so that two keys
// in the overlap do not double the quota. It gets the same lifetime, starting now.
func keyRotate(ctx context.Context, c *invocation) error {
	successor := c.key
	successor.CreatedAt, successor.Succeeds = c.now, keyID(c.key.ID)
	if !c.key.usable(c.now) {
		return fmt.Errorf("key %d is revoked or expired; make a new one with petstore key create", c.key.ID)
	}
	id, err := issue(c.stdout, "$KEY\n", c.key.Test, func(token secret) (int64, error) {
		return rotateKey(ctx, c.store, &successor, token, c.now+instant(c.overlap.Milliseconds()))
	})
	return c.report(err, "key rotated", "id", c.key.ID, "successor", id, "overlap", c.overlap)
}

const keyHeading = "ID\tKEY\tPLAN\tMINUTE\tDAY\tSTATE\tNAME"

// keyList shows all keys, in a table that fits a terminal of 80 columns unless names are long or
// much needs attention.
func keyList(ctx context.Context, c *invocation) error {
	if c.json {
		return c.printArray(func(print func(any) error) error {
			printKey := func(k *apiKey) error { return print(k) }
			return eachKey(ctx, c.store, c.now, printKey, "WHERE true")
		})
	}
	return c.printTable(keyHeading, func(print func(string) error) error {
		printKey := func(k *apiKey) error { return print(keyRow(k, c.now)) }
		return eachKey(ctx, c.store, c.now, printKey, "WHERE true")
	})
}

// keyRow is the row of a key in the table.
func keyRow(k *apiKey, now instant) string {
	environment := "live"
	if k.Test {
		environment = "test"
	}
	return fmt.Sprintf("%d\t%s %s\t%s\t%d/%d\t%d/%d\t%s\t%s", k.ID, environment, k.LastFour, k.Plan,
		k.UsedThisMinute, k.PerMinute, k.UsedToday, k.PerDay, keyState(k, now), k.Name)
}

// keyState says what about a key needs attention.
func keyState(k *apiKey, now instant) string {
	text := k.State
	switch k.State {
	case "revoked", "expired":
		return text
	case "banned":
		layout := "15:04:05Z"
		if k.BannedUntil/dayMillis > now/dayMillis {
			layout = "2006-01-02 15:04:05Z"
		}
		text = "banned to " + k.BannedUntil.time().Format(layout)
	}
	if k.ExpiresAt != 0 {
		text += "; ends "
		if k.ExpiresAt < now+14*dayMillis {
			text += "soon, "
		}
		text += k.ExpiresAt.time().Format(time.DateOnly)
	}
	minute, day := k.usedParts()
	if minute >= nearLimit {
		text += fmt.Sprintf("; minute %.0f %%", math.Round(min(100*minute, 100)))
	}
	if day >= nearLimit {
		text += fmt.Sprintf("; day %.0f %%", math.Round(min(100*day, 100)))
	}
	if k.DeprecatedUseAt != 0 {
		text += "; getPet " + k.DeprecatedUseAt.time().Format(time.DateOnly)
	}
	return text
}

// keyShow shows one key: its row of the table, and below it when it was made and used, and which
// keys it was rotated from and into.
func keyShow(ctx context.Context, c *invocation) error {
	if c.json {
		out := json.NewEncoder(c.stdout)
		out.SetIndent("", "  ")
		out.SetEscapeHTML(false)
		return out.Encode(&c.key)
	}
	used := "never used"
	if c.key.LastUsedAt != 0 {
		used = "last used " + c.key.LastUsedAt.time().Format("2006-01-02 15:04Z")
	}
	created := c.key.CreatedAt.time().Format("2006-01-02 15:04:05Z")
	history := fmt.Sprintf("created %s, %s\n", created, used)
	if c.key.Succeeds != 0 {
		history += fmt.Sprintf("succeeds key %d\n", c.key.Succeeds)
	}
	successors := sqlOf("SELECT id FROM api_keys WHERE usage_id = ? AND succeeds = ? ORDER BY id",
		c.key.usageID, c.key.ID)
	err := c.store.engine.read(ctx, successors, func(scan scanner) error {
		var id int64
		err := scan(&id)
		history += fmt.Sprintf("succeeded by key %d\n", id)
		return err
	})
	if err != nil {
		return err
	}
	if c.key.Succeeds != 0 || c.key.SucceededBy != 0 {
		history += "keys that succeed one another share their usage, limits and time of last use\n"
	}
	err = c.printTable(keyHeading, func(print func(string) error) error {
		return print(keyRow(&c.key, c.now))
	})
	if err != nil {
		return err
	}
	return c.say(history)
}

// keyUsage shows a row for each key, the busiest first, or for one key a row for each day.
func keyUsage(ctx context.Context, c *invocation) error {
	since := int64(c.now/dayMillis) - c.days + 1
	if c.json {
		return c.printArray(func(print func(any) error) error {
			printUse := func(use *keyUse) error { return print(use) }
			return eachUseByDay(ctx, c.store, since, c.key.usageID, -1, printUse)
		})
	}
	bars := isTerminal(c.stdout)
	heading := "\t ADMITTED\t  REFUSED\t  ERRORS"
	if bars {
		heading += "  █ admitted ░ refused "
	}
	if c.key.ID != 0 {
		return eachUseByDay(ctx, c.store, since, c.key.usageID, -1, func(use *keyUse) error {
			heading += fmt.Sprintf("\tkey %d, %s, %s", use.ID, use.Plan, use.Name)
			return c.printDays("DAY"+heading, use, since, bars)
		})
	}
	return c.printTable("ID"+heading+"\tPLAN\tNAME", func(print func(string) error) error {
		return eachUse(ctx, c.store, since, 0, -1, func(use *keyUse) error {
			row := useRow(strconv.FormatInt(use.ID, 10), use.total, use.most, bars)
			return print(row + "\t" + use.Plan + "\t" + use.Name)
		})
	})
}

// printDays prints a row for each day, those without requests too.
func (c *invocation) printDays(heading string, use *keyUse, since int64, bars bool) error {
	days := map[string]dayUse{}
	most := int64(0)
	for _, d := range use.Days {
		days[d.Day] = d
		most = max(most, d.Admitted+d.Refused)
	}
	return c.printTable(heading, func(print func(string) error) error {
		for day := since; day < since+c.days; day++ {
			date := time.Unix(day*86400, 0).UTC().Format(time.DateOnly)
			row := useRow(date, days[date], most, bars)
			if err := print(strings.TrimRight(row, " ")); err != nil {
				return err
			}
		}
		return nil
	})
}

// useRow is the begin of a row of a table of usage. A bar has 20 cells for the most requests, and
// at least one for what is not 0.
func useRow(label string, use dayUse, most int64, bars bool) string {
	row := fmt.Sprintf("%s\t%9d\t%9d\t%8d", label, use.Admitted, use.Refused, use.Errors)
	if !bars {
		return row
	}
	most = max(most, 1)
	admitted := strings.Repeat("█", int((20*use.Admitted+most-1)/most))
	refused := strings.Repeat("░", int((20*use.Refused+most-1)/most))
	return row + fmt.Sprintf("  %-21s", admitted+refused)
}

// printTable prints rows as they come, below a heading. Their columns are ended by tabs, and 10,000
// rows at a time are aligned, so that a longer table takes no more memory.
func (c *invocation) printTable(heading string, each func(print func(row string) error) error) error {
	table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	if _, err := fmt.Fprintln(table, heading); err != nil {
		return err
	}
	rows := 0
	err := each(func(row string) error {
		if _, err := fmt.Fprintln(table, row); err != nil {
			return err
		}
		rows++
		if rows%10_000 == 0 {
			return table.Flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return table.Flush()
}

// printArray prints a JSON array, and each of its elements as it comes.
func (c *invocation) printArray(each func(print func(element any) error) error) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("  ", "  ")
	encoder.SetEscapeHTML(false)
	before := "[\n  "
	err := each(func(element any) error {
		text.Reset()
		text.WriteString(before)
		before = ",\n  "
		if err := encoder.Encode(element); err != nil {
			return err
		}
		return c.say(strings.TrimSuffix(text.String(), "\n"))
	})
	if err != nil {
		return err
	}
	if before == "[\n  " {
		return c.say("[]\n")
	}
	return c.say("\n]\n")
}

// backup moves the ids on in the copy of a cluster, which serves at once and beside it.
func backup(ctx context.Context, c *invocation) error {
	if !isCluster(c.db) && !c.given("skip-ids") {
		c.skipIDs = 0
	}
	copied, err := c.saveCopy(ctx, c.Arg(0), c.skipIDs)
	if err != nil {
		return fmt.Errorf("cannot back up %s to %s: %w", databaseName(c.db), c.Arg(0), err)
	}
	return c.report(nil, "backup made", "copied", copied, "database", databaseName(c.db), "to", c.Arg(0))
}

// saveCopy makes a copy of the database, which may replace an older one, and says what was copied.
func (c *invocation) saveCopy(ctx context.Context, to string, skipIDs int64) (copied string, err error) {
	var size int64 // that it can be read shows that the node of a cluster leads, and so has all that was acknowledged
	if _, err := c.store.readInto(ctx, sqlOf(sizeQuery), &size); err != nil {
		return "", err
	}
	err = saveFile(to, func(temp *os.File) error {
		copied, err = c.fill(ctx, temp, size, skipIDs, func() error { return c.store.engine.backup(ctx, temp) })
		return err
	})
	return copied, err
}

// fill lets do write a copy of about so many bytes, checks it, and says what was copied. In it, new ids start
// skipIDs above those that it holds.
func (c *invocation) fill(ctx context.Context, temp *os.File, size, skipIDs int64, do func() error) (string, error) {
	stop := c.watch(ctx, "copying", size, temp)
	err := do()
	if stop(); err != nil {
		return "", err
	}
	defer c.watch(ctx, "checking", 0, temp)()
	pets, size, err := finishCopy(ctx, temp.Name(), skipIDs)
	return amount(pets, "pets") + ", " + amount(size, "bytes") + ", checked", err
}

// watch shows the size of a file until stop is called. One that does not grow has no total.
func (c *invocation) watch(ctx context.Context, doing string, total int64, file *os.File) (stop func()) {
	p, shown := c.progress(doing, "bytes", total), sync.WaitGroup{}
	ctx, cancel := context.WithCancel(ctx)
	shown.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, 200*time.Millisecond) {
			if info, err := file.Stat(); err == nil {
				p.show(info.Size())
			}
		}
	})
	return func() { cancel(); shown.Wait(); p.end() }
}

func restore(ctx context.Context, c *invocation) error {
	copied, old, err := c.restoreCopy(ctx)
	if err != nil {
		return fmt.Errorf("cannot restore %s from %s: %w", databaseName(c.db), c.Arg(0), err)
	}
	return c.report(nil, "database restored", "copied", copied, "database", databaseName(c.db), "from", c.Arg(0),
		"old", old, "skippedIDs", c.skipIDs)
}

// petImport stores nothing before all lines are known to be right. Until then the pets are rows in
// a temporary file, which has no name any more.
func petImport(ctx context.Context, c *invocation) error {
	rows, err := os.CreateTemp("", "petstore-")
	if err != nil {
		return err
	}
	_ = os.Remove(rows.Name())
	defer rows.Close()
	var digest string
	var total int64
	err = untilStopped(ctx, func() (err error) {
		digest, total, err = c.readPets(ctx, rows)
		return err
	})
	if err != nil {
		return err
	}
	start, err := c.importStart(ctx, digest, total)
	if err != nil {
		return err
	}
	stored, err := c.writePets(ctx, rows, digest, start, total)
	if err != nil {
		return fmt.Errorf("%sof %s are stored; the same import goes on after them: %w",
			amount(stored, ""), amount(total, "pets"), err)
	}
	message := amount(total-start, "pets") + " imported"
	if start > 0 {
		message += ", which ends an import that was stopped"
	}
	return c.report(nil, message, "file", c.Arg(0), "sha256", digest,
		"before", start, "database", databaseName(c.db))
}

// importStart is how many pets of an import are stored already. One that has ended begins anew with
// -again: its place is moved to the start before anything is stored, so that every later step can
// tell whether it was made.
func (c *invocation) importStart(ctx context.Context, digest string, total int64) (int64, error) {
	stored, err := c.store.imported(ctx, digest)
	if err != nil || stored < total || total == 0 {
		return stored, err
	}
	if !c.again {
		return 0, fmt.Errorf("it was imported before, all %s; -again adds them once more",
			amount(total, "pets"))
	}
	return 0, c.store.moveImport(ctx, digest, total, 0)
}

// untilStopped returns what do returns, unless ctx ends while do waits for the other end of a pipe.
func untilStopped(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// readPets writes the pets of the file as rows, and returns how many there are, and the digest of
// the content. The first lines that are wrong are shown.
func (c *invocation) readPets(ctx context.Context, rows io.Writer) (digest string, pets int64, err error) {
	file, size, err := c.openPets()
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	const maxShown = 20
	byteOrderMark := []byte("\ufeff")
	sum, out := sha256.New(), bufio.NewWriter(rows)
	in := bufio.NewReaderSize(io.TeeReader(file, sum), len(byteOrderMark)+maxBody+len("\n"))
	p := c.progress("checking", "bytes", size)
	defer p.end()
	var read, wrong int64
	for number := 1; !errors.Is(err, io.EOF); number++ {
		if ctx.Err() != nil {
			return "", 0, context.Cause(ctx)
		}
		var line []byte
		line, err = readLine(in)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", 0, err
		}
		read += int64(len(line))
		p.show(read)
		if number == 1 {
			line = bytes.TrimPrefix(line, byteOrderMark)
		}
		row, problem := rowOf(line)
		if row == "" && problem == nil {
			continue
		}
		pets++
		if problem == nil {
			_, _ = out.WriteString(row + "\n") // Flush returns the error
			continue
		}
		wrong++
		if wrong <= maxShown {
			p.end()
			_, text, _ := strings.Cut(problem.Error(), ": ")
			_, _ = fmt.Fprintf(c.stderr, "line %d: %s\n", number, text)
		}
	}
	if wrong > 0 {
		return "", 0, fmt.Errorf("%s has %s; nothing was stored",
			c.Arg(0), amount(wrong, "wrong lines"))
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), pets, out.Flush()
}

// openPets opens the file of an import, and returns its size, or 0 if that is unknown.
func (c *invocation) openPets() (io.ReadCloser, int64, error) {
	if c.Arg(0) == "-" {
		return io.NopCloser(c.stdin), 0, nil
	}
	file, err := os.Open(c.Arg(0))
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// readLine reads a line with its end. Of one that does not fit, it returns as much as the buffer
// holds.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	line = bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = in.ReadSlice('\n')
	}
	return line, err
}

// rowOf is the row of the pet on a line, or "" for an empty line. The line is read as strictly as
// the body of createPet, but for an id, which does not count.
func rowOf(line []byte) (string, error) {
	if len(bytes.TrimSuffix(line, []byte("\n"))) > maxBody {
		return "", newError(CodeInvalidBody, "the line must have at most %d bytes", maxBody)
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return "", nil
	}
	pet, err := decodeNewPet(line, "id")
	if err != nil {
		return "", err
	}
	return pet.row(), nil
}

// importBatch is how many pets of an import share a transaction. More would be faster, but creates
// wait meanwhile.
const importBatch = 500

// writePets stores the rows behind the first ones, which are stored, and returns how many are
// stored then. After each transaction it pauses for as long as that took, so that others can write
// for half of the time.
func (c *invocation) writePets(ctx context.Context, rows *os.File, digest string,
	stored, total int64) (int64, error) {
	p := c.progress("importing", "pets", total)
	p.from = stored
	defer p.end()
	in := bufio.NewScanner(io.NewSectionReader(rows, 0, math.MaxInt64))
	for range stored {
		in.Scan()
	}
	for stored < total {
		if ctx.Err() != nil { // which comes too late once all are stored
			return stored, context.Cause(ctx)
		}
		var pets []string
		for len(pets) < importBatch && in.Scan() {
			pets = append(pets, in.Text())
		}
		if in.Err() != nil {
			return stored, in.Err()
		}
		begin, next := time.Now(), stored+int64(len(pets))
		if err := c.store.importPets(ctx, digest, pets, stored, next); err != nil {
			return stored, err
		}
		stored = next
		p.show(stored)
		pause(ctx, time.Since(begin))
	}
	return stored, nil
}

// petExport writes to a file, which is there when it is whole, or to stdout.
func petExport(ctx context.Context, c *invocation) (err error) {
	var done, total int64
	count := sqlOf("SELECT count(*) FROM pets WHERE ? IN (0, status)", storedStatus[PetStatus(c.status)])
	if _, err := c.store.readInto(ctx, count, &total); err != nil {
		return err
	}
	p := c.progress("exporting", "pets", total)
	write := func(w io.Writer) error {
		out := bufio.NewWriterSize(w, maxBody)
		err := c.store.eachPetJSON(ctx, PetStatus(c.status), func(pet string) error {
			done++
			p.show(done)
			_, err := out.WriteString(pet + "\n")
			return err
		})
		return cmp.Or(err, out.Flush())
	}
	if c.Arg(0) != "" && c.Arg(0) != "-" {
		err = saveFile(c.Arg(0), func(temp *os.File) error { return errors.Join(write(temp), temp.Sync()) })
	} else {
		if isTerminal(c.stdout) { // which shows the pets
			p.w = io.Discard
		}
		err = untilStopped(ctx, func() error { return write(c.stdout) })
	}
	p.end()
	if readerLeft(err) {
		return errExportCut
	}
	if err != nil {
		return fmt.Errorf("cannot export the pets of %s: %w", databaseName(c.db), err)
	}
	return c.report(nil, amount(done, "pets")+" exported", "file", cmp.Or(c.Arg(0), "-"), "database", databaseName(c.db))
}

func petSet(ctx context.Context, c *invocation) error {
	attributes := []any{"id", c.Arg(0)}
	if c.given("name") {
		attributes = append(attributes, "name", c.name)
	}
	if c.given("category") {
		attributes = append(attributes, "category", c.category)
	}
	if c.given("status") {
		attributes = append(attributes, "status", c.status)
	}
	change := sqlOf(sqlFile("set-pet"), quote(c.name), c.category, storedStatus[PetStatus(c.status)], c.Arg(0))
	return c.editPet(ctx, change, "pet changed", attributes...)
}

func petDelete(ctx context.Context, c *invocation) error {
	change := sqlOf("DELETE FROM pets WHERE id = ?1 AND CAST(id AS TEXT) = ?1", c.Arg(0))
	return c.editPet(ctx, change, "pet deleted", "id", c.Arg(0))
}

// editPet changes the pet that the command line names, and logs what it did.
func (c *invocation) editPet(ctx context.Context, change statement, message string, attributes ...any) error {
	changed, err := c.edit(ctx, change)
	if err == nil && !changed {
		err = fmt.Errorf("no pet has the id %s", c.Arg(0))
	}
	return c.report(err, message, attributes...)
}

// restoreCopy puts a copy in the place of the database, and keeps what that holds under the name old, or "" if it holds
// nothing. New ids start -skip-ids above the copy's, so that no id that a client has seen is used again.
func (c *invocation) restoreCopy(ctx context.Context) (copied, old string, err error) {
	source, _ := os.Stat(c.Arg(0))
	if replaced, _ := os.Stat(c.db); os.SameFile(source, replaced) { // false for what is not there
		return "", "", errors.New("they are the same file")
	}
	var open closers
	defer open.Close()
	from, err := openCopy(ctx, c.Arg(0), &open)
	if err != nil {
		return "", "", err
	}
	var path string
	settle := func(temp *os.File) (string, error) { return c.load(ctx, temp, from.Name()) }
	if !isCluster(c.db) {
		path, err = takeOver(ctx, c.db, &open)
		settle = func(temp *os.File) (string, error) { return keepOld(ctx, path, temp.Name(), c.now.time(), &open) }
	} else if path, err = os.MkdirTemp("", "petstore-"); err == nil {
		defer os.RemoveAll(path)
		path = filepath.Join(path, "copy")
	}
	if err != nil {
		return "", "", err
	}
	err = replaceFile(path, func(temp *os.File) error {
		copied, err = c.fill(ctx, temp, source.Size(), c.skipIDs, func() (err error) {
			for n := int64(1); n > 0 && err == nil && ctx.Err() == nil; {
				n, err = io.Copy(temp, io.LimitReader(from, 1<<20))
			}
			return cmp.Or(context.Cause(ctx), err)
		})
		if err == nil {
			old, err = settle(temp)
		}
		return err
	})
	return copied, old, err
}

// load puts a checked copy in the place of all that a cluster holds, which is kept beside the original.
func (c *invocation) load(ctx context.Context, temp *os.File, original string) (old string, err error) {
	keep := func() error {
		if !c.replace {
			return errors.New("it holds a petstore's data; with -replace they are kept beside the copy")
		}
		old = oldName(original, c.now.time())
		_, err := c.saveCopy(ctx, old, 0)
		return err
	}
	e := c.store.engine.(*rqlite)
	if err := e.makeRoom(ctx, c.now, keep); err != nil {
		return "", err
	}
	defer c.watch(ctx, "loading", 0, temp)()
	return old, e.load(ctx, io.NewSectionReader(temp, 0, math.MaxInt64), c.now)
}

// version names the build, as far as the toolchain recorded it.
func version() string {
	release, revision := build()
	return strings.TrimSpace("petstore " + release + " " + runtime.Version() + " " + revision)
}

// config is what the flags say, those of the server first.
type config struct {
	settings
	addr, db, debugAddr, tlsCert, tlsKey, logFormat string

	debugAllowRemote bool
	cache            int64       // bytes
	tls              *tls.Config // of tlsCert and tlsKey, or nil
	logLevel         slog.Level

	plan, name                 string
	quota                      quota // of -per-minute and -per-day; then what the plan admits
	expires, overlap           time.Duration
	test, json, replace, again bool
	skipIDs, days              int64
	category, status           string // of a pet
}

// funcFlag declares a flag whose value set keeps, unless it is wrong; must says what it has to be.
func funcFlag(fs *flag.FlagSet, name, must string, set func(value string) (ok bool)) {
	fs.Func(name, "", func(value string) error {
		if !set(value) {
			return errors.New("it must be " + must)
		}
		return nil
	})
}

// textFlag declares a flag whose text must pass a check.
func textFlag(fs *flag.FlagSet, into *string, name, must string, check func(string) bool) {
	funcFlag(fs, name, must, func(s string) bool { *into = s; return check(s) })
}

// durationFlag declares a flag that takes a duration of Go, such as 36h, or whole days,
// such as 90d: a second at least, or 0.
func durationFlag(fs *flag.FlagSet, into *time.Duration, name string, value time.Duration) {
	*into = value
	funcFlag(fs, name, "like 90d, 36h or 10m, at least 1s, or 0", func(s string) bool {
		days, err := strconv.ParseUint(strings.TrimSuffix(s, "d"), 10, 16)
		if err == nil && strings.HasSuffix(s, "d") {
			s = fmt.Sprintf("%dh", 24*days)
		}
		*into, err = time.ParseDuration(s)
		return err == nil && (*into == 0 || *into >= time.Second)
	})
}

// numberFlag declares a flag that takes a decimal number: 0100 is 100, not 64.
func numberFlag(fs *flag.FlagSet, into *int64, name string, value int64) {
	*into = value
	funcFlag(fs, name, "a number", func(s string) (ok bool) {
		n, err := strconv.ParseInt(s, 10, 64)
		*into = n
		return err == nil
	})
}

// allFlags declares the flags of all verbs, with their defaults. web/manual.txt explains them.
func allFlags(c *config) *flag.FlagSet {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	c.addr, c.db, c.logFormat, c.cache, c.plan = "localhost:8080", "petstore.db", "auto", defaultCache, "free"
	textFlag(fs, &c.addr, "addr", "HOST:PORT", isAddr)
	textFlag(fs, &c.db, "db", "a file, or addresses like http://10.0.0.1:4001, separated by commas", isDatabase)
	textFlag(fs, &c.baseURL, "base-url", "an http or https URL ending in /v1", isBaseURL)
	textFlag(fs, &c.stagingURL, "staging-url", "an http or https URL ending in /v1", isBaseURL)
	fs.BoolVar(&c.staging, "staging", false, "")
	durationFlag(fs, &c.banFor, "ban-for", 10*time.Minute)
	funcFlag(fs, "cache", "like 16MiB, 500KiB, 1GiB or 65536, or 0", func(s string) bool {
		digits := strings.TrimRight(s, "KMGiB")
		n, err := strconv.ParseUint(digits, 10, 32)
		unit := map[string]int64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[s[len(digits):]]
		c.cache = int64(n) * unit
		return err == nil && unit != 0
	})
	textFlag(fs, &c.clientIPHeader, "client-ip-header", "the name of a header", oneOf(`[A-Za-z0-9-]+`))
	funcFlag(fs, "cors-origin", "*, or as browsers send it, like https://example.com: no path, default port or "+
		"wildcard, and the host in ASCII (punycode)", func(s string) bool {
		origins := strings.Split(s, ",")
		c.corsOrigins = append(c.corsOrigins, origins...)
		return !slices.ContainsFunc(origins, func(origin string) bool { return !isOrigin(origin) })
	})
	fs.StringVar(&c.tlsCert, "tls-cert", "", "")
	fs.StringVar(&c.tlsKey, "tls-key", "", "")
	textFlag(fs, &c.logFormat, "log", "text, json or auto", oneOf("text|json|auto"))
	fs.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "")
	textFlag(fs, &c.debugAddr, "debug-addr", "HOST:PORT", isAddr)
	fs.BoolVar(&c.debugAllowRemote, "debug-allow-remote", false, "")

	textFlag(fs, &c.plan, "plan", "one of "+strings.Join(slices.Sorted(maps.Keys(plans)), ", "), isPlan)
	numberFlag(fs, &c.quota.PerMinute, "per-minute", 0)
	numberFlag(fs, &c.quota.PerDay, "per-day", 0)
	fs.StringVar(&c.name, "name", "", "")
	durationFlag(fs, &c.expires, "expires", 0)
	durationFlag(fs, &c.overlap, "overlap", 24*time.Hour)
	numberFlag(fs, &c.days, "days", 30)
	fs.BoolVar(&c.test, "test", false, "")
	fs.BoolVar(&c.json, "json", false, "")
	numberFlag(fs, &c.skipIDs, "skip-ids", 1_000_000)
	fs.BoolVar(&c.replace, "replace", false, "")
	fs.BoolVar(&c.again, "again", false, "")
	textFlag(fs, &c.category, "category", "an integer of 64 bits", isInteger)
	textFlag(fs, &c.status, "status", "available, pending or sold", oneOf("available|pending|sold"))
	return fs
}

// oneOf is a check that all of a text matches a pattern.
func oneOf(pattern string) func(string) bool {
	return regexp.MustCompile("^(" + pattern + ")$").MatchString
}

func isDatabase(s string) bool { return s != "" && (!isCluster(s) || parseCluster(s) != nil) }
func isPlan(s string) bool     { _, ok := plans[s]; return ok }
func isInteger(s string) bool  { _, err := strconv.ParseInt(s, 10, 64); return err == nil }

// isAddr takes a host, which may be empty, and a port.
func isAddr(s string) bool {
	_, port, err := net.SplitHostPort(s)
	_, unknown := net.LookupPort("tcp", port) //nolint:noctx // from a file at the most
	return err == nil && port != "" && unknown == nil
}

// isBaseURL takes an absolute http or https URL whose path ends in /v1, and
// which needs no escaping, since it is written into headers.
func isBaseURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.String() == s && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" &&
		u.User == nil && u.RawQuery == "" && u.Fragment == "" && strings.HasSuffix(s, "/v1")
}

// isOrigin takes * or a serialized origin that browsers send: scheme, host and perhaps a port, but not the default one.
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	return s == "*" || err == nil && u.Scheme != "" && u.Hostname() != "" &&
		s == strings.ToLower(u.Scheme+"://"+u.Host) &&
		!regexp.MustCompile(`[^!-)+-~]|:$|^https:.*:0*443$|^http:.*:0*80$`).MatchString(s)
}

// parse declares those flags that the synopsis of a verb mentions, and reads them from args and, if they are not given
// there, from the environment: -base-url is PETSTORE_BASE_URL, and PETSTORE_STAGING is -test, too. Empty variables do
// not count, and of several with one name the last does. It returns variables that look like ours and are no flag's.
func (c *invocation) parse(verb, synopsis string, args []string) (unknown []string, err error) {
	c.FlagSet = flag.NewFlagSet("petstore "+verb, flag.ContinueOnError)
	c.SetOutput(io.Discard) // main reports errors
	all := allFlags(&c.config)
	all.VisitAll(func(f *flag.Flag) {
		if strings.Contains(synopsis, "-"+f.Name) {
			c.Var(f.Value, f.Name, "")
		}
	})
	if err := c.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil, err
	} else if err != nil {
		return nil, usageErrorf("%v; see %s -h", err, c.Name())
	}
	ours, others := map[string]string{}, map[string]bool{}
	for _, variable := range c.environ {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "PETSTORE_") {
			ours[name], others[name] = value, true
		}
	}
	all.VisitAll(func(f *flag.Flag) {
		name := "PETSTORE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if slices.Contains([]string{"again", "replace", "skip-ids", "category", "status"}, f.Name) {
			return // it confirms a danger, or says which pets, or what of a pet: only people do
		}
		delete(others, name)
		if strings.HasSuffix(verb, " set") && f.Name != "db" { // a flag says what to change, and no variable
			return
		}
		if f.Name == "test" && ours[name] == "" {
			name = "PETSTORE_STAGING"
		}
		if ours[name] != "" && !c.given(f.Name) && c.Lookup(f.Name) != nil && err == nil {
			if problem := c.Set(f.Name, ours[name]); problem != nil {
				err = usageErrorf("invalid value %q for %s: %v", ours[name], name, problem)
			}
		}
	})
	return slices.Sorted(maps.Keys(others)), err
}

// newLogger writes to stderr; format is text, json or auto.
func newLogger(stderr io.Writer, format string, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "text" || format == "auto" && isTerminal(stderr) {
		return slog.New(slog.NewTextHandler(redactor{stderr}, options))
	}
	return slog.New(slog.NewJSONHandler(redactor{stderr}, options))
}

func isTerminal(w io.Writer) bool {
	f, _ := w.(*os.File)
	info, err := f.Stat() // of nil, it is an error
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// progress shows on stderr how far long work has come: on a terminal in one line that is written over and
// over again, elsewhere in a line every five seconds. Work that ends sooner shows nothing.
type progress struct {
	w            io.Writer
	terminal     bool
	doing, unit  string // "bytes" are shown as MB
	total, from  int64  // 0: unknown; done before the start, which does not count for the rate
	start, shown time.Time
}

func (c *invocation) progress(doing, unit string, total int64) *progress {
	now := time.Now()
	return &progress{c.stderr, isTerminal(c.stderr), doing, unit, total, 0, now, now}
}

// show may be called often: on a terminal it writes at most five times a second.
func (p *progress) show(done int64) {
	now, every, line := time.Now(), 5*time.Second, "%s\n"
	if p.terminal {
		every, line = 200*time.Millisecond, "\r%s\x1b[K" // from the start of the line, and to its end
	}
	if now.Sub(p.shown) < every {
		return
	}
	p.shown = now
	took := now.Sub(p.start)
	rate := float64(done-p.from) / took.Seconds()
	text := p.doing + " " + amount(done, p.unit) + "  " + took.Round(time.Second).String()
	if p.total > 0 {
		part, bar := min(float64(done)/float64(p.total), 1), ""
		if full := int(10 * part); p.terminal {
			bar = strings.Repeat("█", full) + strings.Repeat("░", 10-full) + " "
		}
		text = fmt.Sprintf("%s %s%3.0f %%  %s of %s  %s/s", p.doing, bar, 100*part,
			strings.Fields(amount(done, p.unit))[0], amount(p.total, p.unit), amount(int64(rate), p.unit))
		if rate > float64(p.total)/1e6 { // a guess of weeks is none
			text += "  " + (time.Duration(float64(max(p.total-done, 0))/rate) * time.Second).String() + " left"
		}
	}
	_, _ = fmt.Fprintf(p.w, line, text) // an error of stderr does not end the work
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
