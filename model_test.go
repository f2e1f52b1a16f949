package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// modelPet is the tests' own copy of the wire form, so that a rename fails.
type modelPet struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

// modelNamed is a body with the JSON text of a name.
func modelNamed(literal string) string { return `{"name":` + literal + `,"categoryId":1}` }

// modelNumbered is a body with the JSON text of a categoryId.
func modelNumbered(literal string) string { return `{"name":"Rex","categoryId":` + literal + `}` }

// modelRefused decodes a body that must be refused and returns the message.
func modelRefused(t *testing.T, body string) string {
	t.Helper()
	pet, err := decodeNewPet([]byte(body))
	var refusal *Error
	if !errors.As(err, &refusal) {
		t.Fatalf("%.200q is taken as %+v, error %v; want an *Error", body, pet, err)
	}
	if refusal.Code != "invalid_body" || refusal.Status != 400 {
		t.Errorf("%.200q is %s %d, want invalid_body 400", body, refusal.Code, refusal.Status)
	}
	return refusal.Message
}

func TestDecodeNewPetAccepts(t *testing.T) {
	name := func(s string) NewPet { return NewPet{s, 1, Available} }
	number := func(n int64) NewPet { return NewPet{"Rex", n, Available} }
	for what, c := range map[string]struct {
		body string
		want NewPet
	}{
		"every field": {`{"name":"Rex","categoryId":7,"status":"pending"}`, NewPet{"Rex", 7, Pending}},
		"an omitted status, which becomes available": {`{"name":"Rex","categoryId":7}`, NewPet{"Rex", 7, Available}},
		"the status available":                       {`{"name":"Rex","categoryId":7,"status":"available"}`, NewPet{"Rex", 7, Available}},
		"the status sold":                            {`{"name":"Rex","categoryId":7,"status":"sold"}`, NewPet{"Rex", 7, Sold}},
		"a status with escapes":                      {`{"name":"Rex","categoryId":7,"status":"s\u006fld"}`, NewPet{"Rex", 7, Sold}},
		"fields in another order":                    {`{"status":"sold","categoryId":7,"name":"Rex"}`, NewPet{"Rex", 7, Sold}},
		"a field name with escapes":                  {`{"n\u0061me":"Rex","categoryId":7}`, NewPet{"Rex", 7, Available}},
		"all four kinds of whitespace everywhere":    {" \t\r\n{ \"name\" :\t\"Rex\"\r,\n\"categoryId\" : 7 , \"status\"\n:\"sold\" } \t\r\n", NewPet{"Rex", 7, Sold}},

		"categoryId 0":                  {modelNumbered("0"), number(0)},
		"categoryId -0, which is 0":     {modelNumbered("-0"), number(0)},
		"a negative categoryId":         {modelNumbered("-5"), number(-5)},
		"the largest 64-bit categoryId": {modelNumbered("9223372036854775807"), number(math.MaxInt64)},
		"the least 64-bit categoryId":   {modelNumbered("-9223372036854775808"), number(math.MinInt64)},

		"a name of one character":                {modelNamed(`"x"`), name("x")},
		"a name of 200 characters":               {modelNamed(`"` + strings.Repeat("x", 200) + `"`), name(strings.Repeat("x", 200))},
		"a name of 200 characters of four bytes": {modelNamed(`"` + strings.Repeat("🐈", 200) + `"`), name(strings.Repeat("🐈", 200))},
		"200 characters, all surrogate pairs":    {modelNamed(`"` + strings.Repeat(`\ud83d\udc08`, 200) + `"`), name(strings.Repeat("🐈", 200))},
		"spaces around a name, which stay":       {modelNamed(`" Rex "`), name(" Rex ")},
		"two forms of é, which stay apart":       {modelNamed(`"\u00e9e\u0301"`), name("\u00e9e\u0301")},
		"the escapes of printable characters":    {modelNamed(`"\"\\\/\u0041\u00E9"`), name(`"\/Aé`)},
		"a surrogate pair in lower case":         {modelNamed(`"\ud83d\ude00"`), name("😀")},
		"a surrogate pair in upper case":         {modelNamed(`"\uD83D\uDE00"`), name("😀")},
		"a surrogate pair in mixed case":         {modelNamed(`"\uD83d\uDe00"`), name("😀")},
		"the first and the last surrogate pair":  {modelNamed(`"\ud800\udc00\uDBFF\uDFFF"`), name("\U00010000\U0010FFFF")},
		"escapes beside the surrogates":          {modelNamed(`"\ud7ff\ue000"`), name("\ud7ff\ue000")},
		"the replacement character":              {modelNamed(`"\ufffd�"`), name("\ufffd\ufffd")},
		"an escaped backslash before ud83d":      {modelNamed(`"\\ud83d"`), name(`\ud83d`)},
		"an escaped backslash before a pair":     {modelNamed(`"\\\ud83d\ude00"`), name(`\😀`)},
		"two escaped backslashes before udc00":   {modelNamed(`"\\\\udc00"`), name(`\\udc00`)},
		"a zero width joiner":                    {modelNamed(`"👩‍🚀"`), name("👩‍🚀")},
		"line and paragraph separators":          {modelNamed("\"\u2028x\u2029\""), name("\u2028x\u2029")},
		"a name that looks like HTML":            {modelNamed(`"<b>&</b>"`), name("<b>&</b>")},
		"a name that looks like SQL":             {modelNamed(`"'; DROP TABLE pets; --"`), name("'; DROP TABLE pets; --")},
	} {
		t.Run(what, func(t *testing.T) {
			if got, err := decodeNewPet([]byte(c.body)); err != nil || got != c.want {
				t.Errorf("decodeNewPet(%s) = %+v, %v; want %+v", c.body, got, err, c.want)
			}
		})
	}
}

func TestDecodeNewPetRefusesTheWholeBody(t *testing.T) {
	const object = `{"name":"Rex","categoryId":1}`
	for what, c := range map[string]struct{ body, want string }{
		"an empty body":              {"", "the body is empty"},
		"only whitespace":            {" \r\n\t", "the body is empty"},
		"an array":                   {"[" + object + "]", "must be a JSON object"},
		"a string":                   {`"name"`, "must be a JSON object"},
		"a number":                   {"1", "must be a JSON object"},
		"null":                       {"null", "must be a JSON object"},
		"true":                       {"true", "must be a JSON object"},
		"a second object":            {object + object, "not valid JSON"},
		"a second value":             {object + " 1", "not valid JSON"},
		"a comma after the object":   {object + ",", "not valid JSON"},
		"garbage after the object":   {object + "x", "not valid JSON"},
		"a NUL after the object":     {object + "\x00", "not valid JSON"},
		"a truncated object":         {object[:20], "not valid JSON"},
		"a trailing comma":           {`{"name":"Rex","categoryId":1,}`, "not valid JSON"},
		"a comment":                  {`{"name":"Rex",/**/"categoryId":1}`, "not valid JSON"},
		"single quotes":              {`{'name':'Rex','categoryId':1}`, "not valid JSON"},
		"a byte order mark":          {"\ufeff" + object, "not valid JSON"},
		"a raw line feed in a name":  {modelNamed("\"a\nb\""), "not valid JSON"},
		"an unknown escape":          {modelNamed(`"\x41"`), "not valid JSON"},
		"a leading zero":             {modelNumbered("01"), "not valid JSON"},
		"a plus sign":                {modelNumbered("+1"), "not valid JSON"},
		"NaN":                        {modelNumbered("NaN"), "not valid JSON"},
		"a hexadecimal number":       {modelNumbered("0x10"), "not valid JSON"},
		"a stray byte in a name":     {modelNamed("\"a\xffb\""), "not valid UTF-8"},
		"a Latin-1 name":             {modelNamed("\"Ren\xe9\""), "not valid UTF-8"},
		"an overlong slash":          {modelNamed("\"\xc0\xaf\""), "not valid UTF-8"},
		"a surrogate in UTF-8":       {modelNamed("\"\xed\xa0\x80\""), "not valid UTF-8"},
		"a truncated character":      {modelNamed("\"\xf0\x9f\x90\""), "not valid UTF-8"},
		"a stray byte in a field":    {"{\"na\xffme\":1}", "not valid UTF-8"},
		"a stray byte at the end":    {object + "\xff", "not valid UTF-8"},
		"UTF-16":                     {"{\x00}\x00", "not valid JSON"},
		"nesting beyond all reason":  {strings.Repeat("[", 20000), "not valid JSON"},
		"a deep unknown field":       {`{"a":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "}", "not valid JSON"},
		"an object without fields":   {"{}", "name: is required; categoryId: is required"},
		"an unclosed object":         {"{", "not valid JSON"},
		"a lone closing brace after": {object + "}", "not valid JSON"},
	} {
		t.Run(what, func(t *testing.T) {
			if got := modelRefused(t, c.body); !strings.Contains(got, c.want) {
				t.Errorf("the message is %q, want it to say %q", got, c.want)
			}
		})
	}
}

// TestDecodeNewPetRefusesAName holds the JSON texts that are no name.
func TestDecodeNewPetRefusesAName(t *testing.T) {
	const surrogate, blank, control = "surrogate pair", "must not be blank", "control characters"
	cases := map[string]struct{ literal, want string }{
		"null":                       {"null", "must be a string"},
		"a number":                   {"1", "must be a string"},
		"true":                       {"true", "must be a string"},
		"an array":                   {`["Rex"]`, "must be a string"},
		"an object":                  {"{}", "must be a string"},
		"nothing":                    {`""`, blank},
		"201 characters":             {`"` + strings.Repeat("x", 201) + `"`, "at most 200 characters"},
		"201 characters of two":      {`"` + strings.Repeat("é", 201) + `"`, "at most 200 characters"},
		"201 escaped pairs":          {`"` + strings.Repeat(`\ud83d\ude00`, 201) + `"`, "at most 200 characters"},
		"201 with a space at an end": {`"` + strings.Repeat("x", 200) + ` "`, "at most 200 characters"},

		"a high half alone":                    {`"\ud83d"`, surrogate},
		"a high half in upper case":            {`"\uD83D"`, surrogate},
		"a low half alone":                     {`"\ude00"`, surrogate},
		"a low half in upper case":             {`"\uDE00"`, surrogate},
		"the lowest high half":                 {`"\ud800"`, surrogate},
		"the highest high half":                {`"\uDbFf"`, surrogate},
		"the lowest low half":                  {`"\uDc00"`, surrogate},
		"the highest low half":                 {`"\udFFF"`, surrogate},
		"halves in the wrong order":            {`"\ude00\ud83d"`, surrogate},
		"two high halves":                      {`"\ud83d\ud83d"`, surrogate},
		"two low halves":                       {`"\ude00\ude00"`, surrogate},
		"a high half before a pair":            {`"\ud83d\ud83d\ude00"`, surrogate},
		"a low half after a pair":              {`"\ud83d\ude00\ude00"`, surrogate},
		"a pair taken apart by a letter":       {`"\ud83dx\ude00"`, surrogate},
		"a pair taken apart by a pair":         {`"\ud83d\ud83d\ude00\ude00"`, surrogate},
		"a high half and an escaped letter":    {`"\ud83d\u0041"`, surrogate},
		"a high half and an escaped backslash": {`"\ud83d\\ude00"`, surrogate},
		"a half behind an escaped backslash":   {`"\\\ud83d"`, surrogate},
		"a half behind two of them":            {`"\\\\\ude00"`, surrogate},
		"a half at the end of text":            {`"Rex \udc00"`, surrogate},

		"a tab":                       {`"a\tb"`, control},
		"a line feed":                 {`"a\nb"`, control},
		"a carriage return":           {`"a\rb"`, control},
		"a backspace":                 {`"a\bb"`, control},
		"a form feed":                 {`"a\fb"`, control},
		"NUL":                         {`"a\u0000b"`, control},
		"escape":                      {`"a\u001bb"`, control},
		"unit separator":              {`"a\u001Fb"`, control},
		"DEL":                         {"\"a\x7fb\"", control},
		"DEL escaped":                 {`"a\u007fb"`, control},
		"the first of C1":             {`"a\u0080b"`, control},
		"the last of C1":              {"\"a\u009fb\"", control},
		"next line, a C1 and a space": {`"a\u0085b"`, control},
		"a tab after the name":        {`"Rex\t"`, control},
	}
	for _, space := range " \u00a0\u1680\u2000\u2001\u2007\u200a\u2028\u2029\u202f\u205f\u3000" {
		cases[fmt.Sprintf("only %U", space)] = struct{ literal, want string }{`"` + string(space) + ` "`, blank}
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			if got := modelRefused(t, modelNamed(c.literal)); !strings.HasPrefix(got, "name: ") || !strings.Contains(got, c.want) {
				t.Errorf("for %.100s the message is %q, want name: … %s", c.literal, got, c.want)
			}
		})
	}
}

func TestDecodeNewPetRefusesACategory(t *testing.T) {
	for _, literal := range []string{
		"null", "true", `"1"`, `""`, "[1]", "{}", "1.0", "0.0", "-1.5", "1e2", "1E2", "1e0", "0e0", "1.5e1", "100e-2",
		"9223372036854775808", "-9223372036854775809", "18446744073709551616", "1" + strings.Repeat("0", 400),
	} {
		t.Run(literal[:min(len(literal), 20)], func(t *testing.T) {
			if got := modelRefused(t, modelNumbered(literal)); !strings.HasPrefix(got, "categoryId: must be an integer") {
				t.Errorf("the message is %q", got)
			}
		})
	}
}

func TestDecodeNewPetRefusesAStatus(t *testing.T) {
	for _, literal := range []string{
		"null", "1", "true", "[]", `["sold"]`, "{}", `""`, `"Sold"`, `"SOLD"`, `" sold"`, `"sold "`, `"adopted"`, `"sold\u0000"`, `"\ud800"`,
	} {
		t.Run(literal, func(t *testing.T) {
			got := modelRefused(t, `{"name":"Rex","categoryId":1,"status":`+literal+`}`)
			if got != "status: must be one of available, pending, sold" {
				t.Errorf("the message is %q", got)
			}
		})
	}
}

// TestDecodeNewPetNamesEveryProblem: one response reports all that is to be mended.
func TestDecodeNewPetNamesEveryProblem(t *testing.T) {
	for what, c := range map[string]struct {
		body string
		want []string // the fields in the message, in order, with a word of each problem
	}{
		"a missing name":                      {`{"categoryId":1}`, []string{"name: is required"}},
		"a missing categoryId":                {`{"name":"Rex"}`, []string{"categoryId: is required"}},
		"both missing":                        {`{"status":"sold"}`, []string{"name: is required", "categoryId: is required"}},
		"every field wrong":                   {`{"name":"","categoryId":1.0,"status":null}`, []string{"name: must not be blank", "categoryId: must be an integer", "status: must be one"}},
		"problems in the order of the body":   {`{"status":1,"categoryId":"1","name":2}`, []string{"status: must be one", "categoryId: must be an integer", "name: must be a string"}},
		"an unknown field":                    {`{"name":"Rex","categoryId":1,"age":3}`, []string{`"age": is unknown`}},
		"an id, which the service assigns":    {`{"id":1,"name":"Rex","categoryId":1}`, []string{`"id": is unknown`}},
		"a field in the wrong case":           {`{"Name":"Rex","categoryID":1}`, []string{`"Name": is unknown`, `"categoryID": is unknown`, "name: is required", "categoryId: is required"}},
		"a field beside its wrong case":       {`{"name":"Rex","NAME":"Max","categoryId":1}`, []string{`"NAME": is unknown`}},
		"a field without a name":              {`{"":1,"name":"Rex","categoryId":1}`, []string{`"": is unknown`}},
		"a field with a quote in it":          {`{"a\"b":1,"name":"Rex","categoryId":1}`, []string{`"a\"b": is unknown`}},
		"a line feed in a field, kept quoted": {`{"a\nb":1,"name":"Rex","categoryId":1}`, []string{`"a\nb": is unknown`}},
		"a name twice":                        {`{"name":"Rex","name":"Max","categoryId":1}`, []string{"name: is given more than once"}},
		"the same name twice":                 {`{"name":"Rex","name":"Rex","categoryId":1}`, []string{"name: is given more than once"}},
		"a name twice, once with escapes":     {`{"name":"Rex","\u006eame":"Max","categoryId":1}`, []string{"name: is given more than once"}},
		"a categoryId twice":                  {`{"categoryId":1,"name":"Rex","categoryId":1}`, []string{"categoryId: is given more than once"}},
		"a status twice":                      {`{"status":"sold","name":"Rex","categoryId":1,"status":"sold"}`, []string{"status: is given more than once"}},
		"a name wrong and then right":         {`{"name":"","name":"Rex","categoryId":1}`, []string{"name: must not be blank", "name: is given more than once"}},
		"a name three times, at last wrong":   {`{"name":"Rex","name":"Rex","name":null,"categoryId":1}`, []string{"name: is given more than once"}},
		"a name right and then wrong":         {`{"name":"Rex","name":null,"categoryId":1}`, []string{"name: is given more than once"}},
		"a whole list of things":              {`{"name":null,"x":{"name":"Rex"},"status":"gone","status":"sold"}`, []string{"name: must be a string", `"x": is unknown`, "status: must be one", "status: is given more than once", "categoryId: is required"}},
	} {
		t.Run(what, func(t *testing.T) {
			got := strings.Split(modelRefused(t, c.body), "; ")
			if len(got) != len(c.want) {
				t.Fatalf("the problems are %q, want %q", got, c.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], c.want[i]) {
					t.Errorf("problem %d is %q, want %q", i+1, got[i], c.want[i])
				}
			}
		})
	}
}

// modelOddPets have names that encoders like to disagree on.
var modelOddPets = []NewPet{
	{"Rex", 1, Available},
	{`"`, math.MinInt64, Pending},
	{`\`, math.MaxInt64, Sold},
	{`"\"\\"`, 0, Sold},
	{`\u0041\n`, -1, Available},
	{"/<b>&amp;</b>'", 1, Available},
	{"\u2028\u2029", 1, Available},
	{"x\u2028", 2, Available},
	{"😀👩‍🚀\U0010FFFF", 3, Pending},
	{"\ufffd\ufeff\ufffe", 4, Sold},
	{" e\u0301 \u00a0", 5, Sold},
	{strings.Repeat(`"`, maxName), 6, Sold},
	{strings.Repeat("\U00010000", maxName), 7, Available},
	{"null", 8, Available},
	{`{"id":1}`, 9, Available},
	{"%s ?1 $1", 10, Available},
}

func TestPetJSONIsWhatEncodingJSONSees(t *testing.T) {
	for i, odd := range modelOddPets {
		id := int64(i) * math.MaxInt64 / int64(len(modelOddPets)-1)
		text := []byte(Pet{id, odd}.json())
		var want bytes.Buffer // with the escapes that HTML wants, and only those, turned off
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(modelPet{id, odd.Name, odd.CategoryID, string(odd.Status)}); err != nil {
			t.Fatal(err)
		}
		// encoding/json escapes U+2028 and U+2029 always; JSON does not need it.
		plain := strings.NewReplacer(`\\`, `\\`, `\u2028`, "\u2028", `\u2029`, "\u2029", "\n", "").Replace(want.String())
		if string(text) != plain {
			t.Errorf("json gives %s, encoding/json %s", text, plain)
		}
		var back modelPet
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&back); err != nil || back != (modelPet{id, odd.Name, odd.CategoryID, string(odd.Status)}) {
			t.Errorf("%s decodes to %+v, %v", text, back, err)
		}
	}
}

// TestAppendJSONIsWhatSQLiteBuilds: a 201 and a later GET show the same bytes.
func TestAppendJSONIsWhatSQLiteBuilds(t *testing.T) {
	s, err := openStore(t.Context(), filepath.Join(t.TempDir(), "pets.db"), forNewKey, testLog)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	page := []byte("[")
	for i, odd := range modelOddPets {
		id, err := s.createPet(odd)
		if err != nil {
			t.Fatal(err)
		}
		want := []byte(Pet{id, odd}.json())
		got, err := s.pet(id)
		if err != nil || got == nil || !bytes.Equal(got.body, want) {
			t.Errorf("pet %d from the store is %v, %v; want %s", id, got, err, want)
		}
		if i > 0 {
			page = append(page, ',')
		}
		page = append(page, want...)
	}
	if got, err := s.page("", maxLimit, 0); err != nil || string(got.body) != string(page)+"]" {
		t.Errorf("the page is\n%s, %v; want\n%s]", got.body, err, page)
	}
}

// TestCodesAreAClosedList: clients may switch on these, and on no others.
func TestCodesAreAClosedList(t *testing.T) {
	want := map[ErrorCode]int{
		"invalid_body": 400, "invalid_parameter": 400,
		"missing_key": 401, "invalid_key": 401,
		"not_found": 404, "method_not_allowed": 405, "operation_removed": 410,
		"body_too_large": 413, "unsupported_media_type": 415, "idempotency_key_reused": 422,
		"rate_limited": 429, "key_banned": 429,
		"internal_error": 500, "unavailable": 503,
	}
	if !maps.Equal(statusOfCode, want) {
		t.Errorf("the codes are %v, want %v", statusOfCode, want)
	}
	for code, status := range want {
		text, err := json.Marshal(newError(code, "%d of %q", 1, "x"))
		if wire := fmt.Sprintf(`{"code":%q,"message":"1 of \"x\"","status":%d}`, code, status); err != nil || string(text) != wire {
			t.Errorf("the error is %s, %v; want %s", text, err, wire)
		}
	}
	if got := newError(CodeNotFound, "gone").Error(); got != "not_found: gone" {
		t.Errorf("as a Go error it reads %q", got)
	}
}

// TestNamesOfKeysDoNotTurnText, while those of pets are stored as they are sent.
func TestNamesOfKeysDoNotTurnText(t *testing.T) {
	for c := rune(0x2000); c < 0x2100; c++ {
		name := "x" + string(c) + "y"
		turns := 0x202a <= c && c <= 0x202e || 0x2066 <= c && c <= 0x2069
		if problem := checkKeyName(name); (problem != "") != turns {
			t.Errorf("of a key with %U in its name it is said: %q", c, problem)
		}
		if problem := checkName(name); problem != "" {
			t.Errorf("of a pet with %U in its name it is said: %q", c, problem)
		}
	}
	for _, name := range []string{"shop", "كلب صغير 7", "כלב"} {
		if problem := checkKeyName(name); problem != "" {
			t.Errorf("of a key called %q it is said: %q", name, problem)
		}
	}
	if checkKeyName(" ") == "" || checkKeyName("a\nb") == "" {
		t.Error("the name of a key may be one that no pet can have")
	}
}

// modelHostile are texts, to be repeated, that make a careless search begin anew at every character.
var modelHostile = []string{
	"://pet_live_a", `\"://pet_live_a`, "://", "://a", "://a@", `://a@"`, `://"`, `://\`, `://\"`, `\`, "://pet_live_a@",
	`://pet_test_a"`, "pet_live_a", "pet_live_", "pet_", "PET_TEST_0:", "@", "a", "\xff://", "://🐈pet_live_a",
}

// modelCPU is the processor time that do takes, as the least of three times.
func modelCPU(t *testing.T, do func()) (least time.Duration) {
	t.Helper()
	used := func() time.Duration {
		var usage syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
			t.Fatal(err)
		}
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	least = math.MaxInt64
	for range 3 {
		before := used()
		do()
		least = min(least, used()-before)
	}
	return least
}

// TestWhatIsSentIsRedactedInLinearTime: a text of twice the length may take
// three times as long, for the noise, but not four times.
func TestWhatIsSentIsRedactedInLinearTime(t *testing.T) {
	for where, use := range map[string]func(text string){
		"a text":            func(text string) { redact(text) },
		"a line of the log": func(text string) { _, _ = redactor{io.Discard}.Write([]byte(text)) },
		"a field of a body": func(text string) {
			field, _ := json.Marshal(text)
			modelRefused(t, `{`+string(field)+`:1}`)
		},
		"a query": func(text string) {
			_, err := parsePageRequest(&http.Request{URL: &url.URL{RawQuery: url.QueryEscape(text)}})
			if err == nil {
				t.Error("the query is taken")
			}
		},
	} {
		for _, part := range modelHostile {
			text := "://" + strings.Repeat(part, 16<<10/len(part))
			once := modelCPU(t, func() { use(text) })
			twice := modelCPU(t, func() { use(text + text) })
			if twice > 3*once+20*time.Millisecond {
				t.Errorf("%s: %q takes %v, and twice as much of it %v", where, part, once, twice)
			}
		}
	}
}

// TestNoSecretIsShown holds texts with secrets, and what is left of them.
func TestNoSecretIsShown(t *testing.T) {
	for text, want := range map[string]string{ //nolint:gosec // nobody has these
		"":                                "",
		"pet_live_abc":                    "pet_…",
		"my PET_test_aB0-key":             "my PET_…-key",
		"pet_live_":                       "pet_live_",
		"pet_prod_abc":                    "pet_prod_abc",
		"http://localhost:4001":           "http://localhost:4001",
		"http://anna:secret@n1:4001":      "http://…n1:4001",
		"http://anna:t@p@n1,http://b:c@d": "http://…d",
		`"http://a:b@c" "http://d:e@f"`:   `"http://…c" "http://…f"`,
		`"http://a:b\"b@c"`:               `"http://…c"`,
		"http://a:pet_live_x@y/pet_live_x and pet_test_y": "http://…y/pet_… and pet_…",
		"://pet_live_a://pet_live_b":                      "://pet_…://pet_…",
		"pet_live_a://pet_live_b@pet_live_c":              "pet_…://…pet_…",
	} {
		if got := redact(text); got != want {
			t.Errorf("of %q %q is shown, want %q", text, got, want)
		}
		var log bytes.Buffer
		n, err := redactor{&log}.Write([]byte(text))
		if log.String() != want || n != len(text) || err != nil {
			t.Errorf("of %q %q is logged (%d bytes, %v), want %q", text, log.String(), n, err, want)
		}
	}
}

// modelValid says, by other means than decodeNewPet, what the README's table says of a body.
func modelValid(body []byte) (pet NewPet, valid bool) {
	if !utf8.Valid(body) || !json.Valid(body) || modelHalfPair(body) {
		return pet, false
	}
	var fields map[string]any
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if err := dec.Decode(&fields); err != nil || fields == nil || modelFields(body) != len(fields) {
		return pet, false
	}
	if _, given := fields["status"]; !given {
		fields["status"] = "available"
	}
	name, isString := fields["name"].(string)
	number, isNumber := fields["categoryId"].(json.Number)
	status, isText := fields["status"].(string)
	if len(fields) != 3 || !isString || !isNumber || !isText {
		return pet, false
	}
	id, err := strconv.ParseInt(number.String(), 10, 64)
	if err != nil || !slices.Contains([]string{"available", "pending", "sold"}, status) {
		return pet, false
	}
	count, blank := 0, true
	for _, r := range name {
		if r < 0x20 || 0x7f <= r && r < 0xa0 {
			return pet, false
		}
		count++
		blank = blank && unicode.Is(unicode.White_Space, r)
	}
	return NewPet{name, id, PetStatus(status)}, !blank && count <= 200
}

// modelFields counts the fields of the object, duplicates included.
func modelFields(object []byte) (count int) {
	dec := json.NewDecoder(bytes.NewReader(object))
	depth := 0
	var values int
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) || err != nil {
			return values / 2
		}
		delim, isDelim := token.(json.Delim)
		if isDelim && (delim == '}' || delim == ']') {
			depth--
			continue
		}
		if depth == 1 {
			values++ // a field's name or its value
		}
		if isDelim {
			depth++
		}
	}
}

// modelHalfPair walks the escapes of valid JSON and looks for half a surrogate pair.
func modelHalfPair(text []byte) bool {
	high := false // the last escape was a high half and wants its low one here
	for i := 0; i < len(text); {
		if text[i] != '\\' {
			if high {
				return true
			}
			i++
			continue
		}
		if text[i+1] != 'u' {
			if high {
				return true
			}
			i += 2
			continue
		}
		unit, _ := strconv.ParseUint(string(text[i+2:i+6]), 16, 16)
		low := 0xdc00 <= unit && unit < 0xe000
		if low != high {
			return true
		}
		high = 0xd800 <= unit && unit < 0xdc00
		i += 6
	}
	return high
}

func FuzzDecodeNewPet(f *testing.F) {
	for _, body := range []string{
		`{"name":"Rex","categoryId":7,"status":"sold"}`, ` {"categoryId":-0,"name":"\ud83d\ude00"} `,
		modelNamed(`"\\ud83d"`), modelNamed(`"\ud83d\\ude00"`), modelNamed(`"\u0085"`), modelNamed("\"\u3000\""), modelNumbered("1e2"),
		modelNumbered("9223372036854775808"), `{"name":"a","name":"b","categoryId":1}`, `{"Name":"a","categoryId":1}`, `[]`, `null`, ``, `{`,
		`{"name":"Rex","categoryId":1}{}`, `{"x":{"name":[1,{"a":2}]},"name":"Rex","categoryId":1}`, "{\"name\":\"\xff\"}",
	} {
		f.Add([]byte(body))
	}
	for _, odd := range modelOddPets {
		f.Add([]byte(modelNamed(strconv.QuoteToASCII(odd.Name))))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		pet, err := decodeNewPet(body)
		want, valid := modelValid(body)
		if valid != (err == nil) {
			t.Fatalf("%q: error %v, valid by the oracle: %v", body, err, valid)
		}
		if err != nil {
			var refusal *Error
			if !errors.As(err, &refusal) || refusal.Code != CodeInvalidBody || refusal.Message == "" {
				t.Fatalf("%q: the error is %#v", body, err)
			}
			return
		}
		if pet != want {
			t.Fatalf("%q decodes to %+v, want %+v", body, pet, want)
		}
		// Without its id, the response is a body that makes the same pet again.
		text := []byte(Pet{1, pet}.json())
		again, err := decodeNewPet(append([]byte("{"), bytes.TrimPrefix(text, []byte(`{"id":1,`))...))
		if err != nil || again != pet {
			t.Fatalf("%s decodes to %+v, %v; want %+v", text, again, err, pet)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	body := []byte(`{"name":"Rex \"the king\" of Löwen","categoryId":7,"status":"pending"}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := decodeNewPet(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	pet := Pet{123456, NewPet{`Rex "the king" of Löwen`, 7, Pending}}
	b.ReportAllocs()
	for b.Loop() {
		if text := pet.json(); len(text) == 0 {
			b.Fatal("nothing was written")
		}
	}
}
