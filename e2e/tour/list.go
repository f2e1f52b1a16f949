package tour

// The tests of the service on which exercise race depends.
const (
	oneByOne  = "TestLimitWindows"
	allAtOnce = "TestOf200ParallelRequestsExactlyTheLimitIsAdmitted"
)

// Exercises are in the order of the tour. The one after each mend is the stop's own; the others are
// for those with time left.
var Exercises = []Exercise{
	{
		Stop: 1, Name: "mend1", Task: "refusals in one form, in the naive program",
		check: checkMend,
		Hints: [3]string{
			"Where: in add and in routes. Who else writes errors, although nobody has called " +
				"http.Error?",
			"What: one function that writes a refusal, a return behind each call of it, and a " +
				"route for all that no other route takes.",
			`Nearly the code: func refuse(w http.ResponseWriter, status int, code string) sets Content-Type, writes the status, then {"code":%q}; mux.HandleFunc("/", …) calls it with 404 and not_found.`,
		},
		Question: "what does a client get if add panics?",
	},
	{
		Stop: 1, Name: "header", Task: "a header on every response",
		Breaks: []string{"TestAPetIsReturnedAsItWasCreated",
			"TestAStagingInstanceTakesOnlyTestKeys"},
		Hints: [3]string{
			"Where: in handlers.go. Operations, fail, preflights and 304s write responses; which " +
				"method do all of them call?",
			"What: response.WriteHeader is called once for each response, just before the " +
				"headers leave. The response knows when its request came.",
			`Nearly the code: w.Header()["Server-Timing"] = []string{fmt.Sprintf("total;dur=%.3f", …)} with time.Since(w.start) in milliseconds, before w.ResponseWriter.WriteHeader.`,
		},
		Question: "tests of the contract fail now, since web/openapi.json does not describe the " +
			"header. Is that a nuisance or a service?",
	},
	{
		Stop: 1, Name: "timeout", Task: "an error code of its own",
		Breaks: []string{"TestCodesAreAClosedList", "TestErrorCodesAreThoseDescribed"},
		Hints: [3]string{
			"Where: a code is a constant and a line of statusOfCode in model.go; the body is " +
				"read in handlers.go, in readBody.",
			"What: tell a body that came too slowly from one that was cut off, by what the error " +
				"wraps.",
			"Nearly the code: if errors.Is(err, os.ErrDeadlineExceeded) { return nil, " +
				"newError(CodeRequestTimeout, …) } before the other error.",
		},
		Question: "you did not touch /metrics; why does it count the new code?",
	},
	{
		Stop: 2, Name: "mend2", Task: "a key that neither a copy nor the time shows",
		check: checkMend,
		Hints: [3]string{
			"Where: in what stored holds, and in what check compares with it.",
			"What: store the SHA-256 of the key, and compare it with the SHA-256 of what was " +
				"sent. The loop may stay as it is.",
			`Nearly the code: func fingerprint(key string) string returns fmt.Sprintf("%x", sha256.Sum256([]byte(key))); var stored = fingerprint("k7f3zq0w"), and check begins with key = fingerprint(key).`,
		},
		Question: "the time still tells how many bytes of the digest are right. Why does that " +
			"help nobody?",
	},
	{
		Stop: 2, Name: "secret", Task: "a key that no format shows",
		Hints: [3]string{
			"Where: in auth.go, beside String and GoString of secret.",
			"What: a type that implements fmt.Formatter decides about every verb, also about one " +
				"that makes no sense.",
			"Nearly the code: func (s secret) Format(f fmt.State, _ rune) writes s.String() to " +
				"f. Careful: fmt.Fprint(f, s) would call Format again, and again.",
		},
		Question: "which ways are left for a key to get into a log?",
	},
	{
		Stop: 2, Name: "herd", Task: "one read for many who wait",
		Hints: [3]string{
			"Where: in keyring, around read.",
			"What: a map from digest to the read that is under way, guarded by a mutex; who " +
				"finds one there waits for its channel to be closed.",
			"Nearly the code: type reading struct { done chan bool; editsSeen uint64; key " +
				"*apiKey; err error }. Who finds one with an older editsSeen starts its own.",
		},
		Question: "what happens to those who wait if the read panics?",
	},
	{
		Stop: 3, Name: "mend3", Task: "a counter that loses no update", check: checkMend3,
		Hints: [3]string{
			"Where: in admit: three steps that have to be one.",
			"What: a lock that is held from the read to the write, or a loop around CompareAndSwap.",
			"Nearly the code: mu.Lock(); defer mu.Unlock() as the first lines of admit. Nobody " +
				"should sleep while holding a lock.",
		},
		Question: "with two services and one database, who holds the lock?",
	},
	{
		Stop: 3, Name: "race", Task: "break it: lose updates, and see a test notice",
		check:  checkRace,
		Breaks: []string{allAtOnce},
		Hints: [3]string{
			"Where: limiter.charge in limits.go holds the lock from the look at the buckets to " +
				"the taking.",
			"What: copy the usage under the lock, let go of the lock, charge the copy, and write " +
				"it back under the lock. Give others a chance in between.",
			"Nearly the code: charged := *u; l.mu.Unlock(); runtime.Gosched(); d = " +
				"charged.admit(…); l.mu.Lock(); *u = charged.",
		},
		Question: "you touched u only under the lock: does go test -race notice? Why not?",
	},
	{
		Stop: 3, Name: "plan", Task: "a new plan (a warm-up)",
		Breaks: []string{"TestPlansHaveTheQuotasOfTheSpecification",
			"TestEveryDocumentShowsThePlans"},
		Hints: [3]string{
			"Where: in the table of plans in limits.go.",
			"What: one entry.",
			`Nearly the code: "starter", with 120 and 5,000, written as the others are.`,
		},
		Question: "which tests fail now, and what do they protect?",
	},
	{
		Stop: 3, Name: "leak", Task: "a bucket that refills bit by bit",
		Breaks: []string{"TestLimitWindows"},
		Hints: [3]string{
			"Where: bucket.levelAt and bucket.take in limits.go; the day's bucket uses them too.",
			"What: keep when the bucket will be full again; each request moves that moment on by " +
				"one sixtieth of the minute, and what remains follows from it.",
			"Nearly the code: with each = minuteMillis / limit, missing = (ends - now + each - " +
				"1) / each, remaining = limit - missing, and take sets ends = max(ends, now) + " +
				"each.",
		},
		Question: "flush knows only windows that begin and end. What would it have to add, in " +
			"place of \"used in this window\"?",
	},
	{
		Stop: 4, Name: "mend4", Task: "bodies read as strictly as encoding/json can",
		check: checkMend,
		Hints: [3]string{
			"Where: in decode. A json.Decoder has a switch for unknown fields, and its Token " +
				"says io.EOF only at the very end.",
			"What: DisallowUnknownFields; pointers, which stay nil when a field is missing or " +
				"null; and after the object nothing but the end.",
			"Nearly the code: decode into struct{ Name *string; CategoryID *int64; Status string " +
				"} with the same tags, then want decoder.Token() to say io.EOF.",
		},
		Question: "which of the last three bodies could you refuse with more switches of " +
			"encoding/json?",
	},
	{
		Stop: 4, Name: "hint", Task: "a message that helps",
		Breaks: []string{"TestOneMessageNamesEveryProblemInTheOrderOfTheBody"},
		Hints: [3]string{
			"Where: in readFields in model.go, where a field is unknown.",
			"What: look for a known field that differs only in case.",
			"Nearly the code: for each known field, if strings.EqualFold(name, field), the " +
				"message gets \", did you mean \" and the field.",
		},
		Question: "should the service take such a field, since it knows what was meant?",
	},
	{
		Stop: 4, Name: "bodies", Task: "a limit on bodies per key",
		Hints: [3]string{
			"Where: in createPet, behind the read of the body; what a key has sent has to be " +
				"kept somewhere, under a lock.",
			"What: a window for each key, like a bucket that counts bytes; windows that have " +
				"ended are thrown away.",
			"Nearly the code: a map from the key's id to struct{ bytes int64; ends instant }; " +
				"refuse with newError(CodeRateLimited, …) and set Retry-After.",
		},
		Question: "all tests of the service still pass. May it be released, then?",
	},
	{
		Stop: 5, Name: "mend5", Task: "on disk before it is confirmed", check: checkMend,
		Hints: [3]string{
			"Where: in store, which confirms when it returns.",
			"What: wait for the disk.",
			"Nearly the code: d.sync() behind d.write(pet).",
		},
		Question: "how long does each of 64 clients wait for one pet, with a disk that takes a " +
			"millisecond?",
	},
	{
		Stop: 5, Name: "batch", Task: "commits of a bounded size",
		Breaks: []string{"TestNobodyWaitsForMoreThanTwoTransactions",
			"TestAFullTransactionRefusesWritesAtOnce"},
		Hints: [3]string{
			"Where: in store.join in store.go, which adds a caller to the next transaction.",
			"What: if the next transaction has 64 callers, wait until it begins, and look again: " +
				"there is another one then. Who says that it begins? Do not wait while you hold " +
				"the lock.",
			"Nearly the code: a transaction gets a channel begun, which lead closes where it " +
				"sets s.next; for s.next.callers == 64 { begun := s.next.begun; s.mu.Unlock(); " +
				"<-begun; s.mu.Lock() }.",
		},
		Question: "which promise does a bound break, and what does it give in return?",
	},
	{
		Stop: 5, Name: "honest", Task: "a test that finds lies", Lies: lies, check: checkHonest,
		Hints: [3]string{
			"Where: in a new file honest_test.go in the root, func TestTheCommitIsHonest.",
			"What: an engine of your own, whose write waits, shows who is answered too early; " +
				"PRAGMA synchronous on the writing connection shows what SQLite was told.",
			"Nearly the code: type slowDisk struct { engine; done chan bool }; in synctest.Test, " +
				"a goroutine creates a pet, synctest.Wait() waits until everybody waits, and " +
				"nobody may be answered yet.",
		},
		Question: "a look at a setting is no look at the disk. What would a test need that looks " +
			"at the disk?",
	},
	{
		Stop: 6, Name: "mend6", Task: "a create that is stored once", check: checkMend,
		Hints: [3]string{
			"Where: on both sides. add gives its create a key, and the other machine remembers " +
				"the keys it has seen.",
			"What: the key is made once for each add, and not once for each try. The other " +
				"machine stores a pet only under a key that it has not seen.",
			"Nearly the code: key := rand.Text() (crypto/rand) before the loop; if !done[key] { " +
				"done[key] = true; pets = append(pets, name) }.",
		},
		Question: "the other machine fails between remembering the key and storing the pet. What " +
			"then?",
	},
	{
		Stop: 6, Name: "repeat", Task: "a client that repeats safely", check: checkRepeat,
		Hints: [3]string{
			"Where: in e2e/tour/stop6/client/main.go, in add.",
			"What: the header Idempotency-Key, with one value for all tries of one pet, and " +
				"another one for the next pet.",
			`Nearly the code: once := rand.Text() before the loop, and request.Header.Set("Idempotency-Key", once) in it.`,
		},
		Question: "the client is killed and started again between two tries. Where should the " +
			"key have been?",
	},
	{
		Stop: 6, Name: "moment", Task: "a number that only one engine knows",
		Hints: [3]string{
			"Where: every engine has a method measure; the table of metrics is in metrics.go.",
			"What: the file engine adds the time of its file, and not of the log beside it. The " +
				"cluster adds nothing.",
			`Nearly the code: an entry {"petstore_checkpoint_time_seconds", "gauge", "…"}, and in sqlite.go ModTime().Unix() of what os.Stat says of e.path.`,
		},
		Question: "what should it show if the file cannot be read any more?",
	},
	{
		Stop: 6, Name: "memory", Task: "a third engine, in memory",
		Hints: [3]string{
			"Where: in sqlite.go, beside openSQLite, and in openStore, which picks the engine.",
			"What: each connection to :memory: has a database of its own; with a name and " +
				"cache=shared, several connections of one process share one.",
			"Nearly the code: a type that embeds *sqliteFile, with " +
				"file:NAME?mode=memory&cache=shared, a random NAME, no lock, no checks of files, " +
				"and a describe and backup of its own.",
		},
		Question: "what do you promise to clients that got a 201 from it? Where would you write " +
			"that down?",
	},
}

// lies are what the test of the exercise "honest" has to find. Both make creates faster.
var lies = []Lie{
	{
		Name: "SQLite does not sync each commit", File: "sqlite.go",
		Old: `"_pragma=synchronous(FULL)", "_pragma=fullfsync(1)"`,
		New: `"_pragma=synchronous(NORMAL)"`,
	},
	{
		Name: "clients are answered while the commit is under way", File: "store.go",
		Old: "	results, err := s.engine.write(ctx, t.statements)\n",
		New: `	results, err := make([]result, len(t.statements)), error(nil)
	for i := range results {
		results[i] = result{lastID: max(1, t.pets), affected: max(1, t.pets)}
	}
	go func() { _, _ = s.engine.write(context.WithoutCancel(ctx), t.statements) }()
`,
	},
}
