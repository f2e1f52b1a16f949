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
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// modelNamed is a body with the JSON text of a name.
func modelNamed(literal string) string { return `{"name":` + literal + `,"categoryId":1}` }

// modelNumbered is a body with the JSON text of a categoryId.
func modelNumbered(literal string) string { return `{"name":"Rex","categoryId":` + literal + `}` }

// modelRefused decodes a body that must be refused and returns the message.
func modelRefused(t *testing.T, body string) string {
	t.Helper()
	pet, err := decodeNewPet([]byte(body))
	refusal, ok := errors.AsType[*Error](err)
	if !ok || refusal.Code != CodeInvalidBody {
		t.Fatalf("%.200q is read as %+v, error %v; want invalid_body", body, pet, err)
	}
	return refusal.Message
}

func TestABodyIsReadAsItWasSent(t *testing.T) {
	for body, want := range map[string]string{
		`{"name":"Rex","categoryId":7,"status":"pending"}`:         "Rex 7 pending",
		`{"name":"Rex","categoryId":7}`:                            "Rex 7 available",
		`{"name":"Rex","categoryId":7,"status":"available"}`:       "Rex 7 available",
		`{"name":"Rex","categoryId":7,"status":"s\u006fld"}`:       "Rex 7 sold",
		`{"status":"sold","categoryId":7,"n\u0061me":"Rex"}`:       "Rex 7 sold",
		" \t\r\n{ \"name\" :\t\"Rex\"\r,\n\"categoryId\" : 7 } \t": "Rex 7 available",
		modelNumbered("-0"):                   "Rex 0 available",
		modelNumbered("9223372036854775807"):  "Rex 9223372036854775807 available",
		modelNumbered("-9223372036854775808"): "Rex -9223372036854775808 available",
	} {
		pet, err := decodeNewPet([]byte(body))
		got := fmt.Sprint(pet.Name, " ", pet.CategoryID, " ", pet.Status)
		if err != nil || got != want {
			t.Errorf("%s is read as %s, %v; want %s", body, got, err, want)
		}
	}
}

// TestANameIsStoredAsItWasSent holds names as JSON texts, and what they say.
func TestANameIsStoredAsItWasSent(t *testing.T) {
	for literal, want := range map[string]string{
		`"x"`:                                           "x",
		`"` + strings.Repeat("x", 200) + `"`:            strings.Repeat("x", 200),
		`"` + strings.Repeat("🐈", 200) + `"`:            strings.Repeat("🐈", 200),
		`"` + strings.Repeat(`\ud83d\udc08`, 200) + `"`: strings.Repeat("🐈", 200),
		`" Rex "`:                    " Rex ",
		`"\u00e9e\u0301"`:            "\u00e9e\u0301", // two forms of é stay apart
		`"\"\\\/\u0041\u00E9"`:       `"\/Aé`,
		`"\uD83d\uDe00"`:             "😀",
		`"\ud800\udc00\uDBFF\uDFFF"`: "\U00010000\U0010FFFF", // the first and the last pair
		`"\ud7ff\ue000"`:             "\ud7ff\ue000",         // the neighbours of the surrogates
		`"\ufffd�"`:                  "\ufffd\ufffd",
		`"\uFFFD\\\ufffd"`:           "\ufffd\\\ufffd",
		`"\\ud83d"`:                  `\ud83d`, // an escaped backslash, and no escape
		`"\\\ud83d\ude00"`:           `\😀`,
		`"\\\\udc00"`:                `\\udc00`,
		`"👩‍🚀"`:                      "👩‍🚀",
		"\"\u2028x\u2029\"":          "\u2028x\u2029",
		`"<b>&</b>"`:                 "<b>&</b>",
		`"'; DROP TABLE pets; --"`:   "'; DROP TABLE pets; --",
		`"Rex, \"Max\": }]{[,"`:      `Rex, "Max": }]{[,`, // separators of JSON are only text here
	} {
		got, err := decodeNewPet([]byte(modelNamed(literal)))
		if err != nil || got.Name != want {
			t.Errorf("%.100s is read as %+v, %v; want %.100q", literal, got, err, want)
		}
	}
}

func TestABodyThatIsNoJSONObjectIsRefused(t *testing.T) {
	const object = `{"name":"Rex","categoryId":1}`
	deep := strings.Repeat("[", 20000)
	for want, bodies := range map[string][]string{
		"the body is empty":     {"", " \r\n\t"},
		"must be a JSON object": {"[" + object + "]", `"name"`, "1", "null", "true"},
		"not valid UTF-8": {
			modelNamed("\"a\xffb\""), modelNamed("\"Ren\xe9\""),
			object + "\xff", "{\"na\xffme\":1}",
			modelNamed("\"\xc0\xaf\""),     // an overlong slash
			modelNamed("\"\xed\xa0\x80\""), // a surrogate
			modelNamed("\"\xf0\x9f\x90\""), // a truncated character
		},
		"not valid JSON": {
			object + object, object + " 1", object + ",", object + "x", object + "\x00",
			object + "}", object[:20], "{",
			"\u00a0" + object, object + "\v", object + "\u2028", // white space, but not of JSON
			`{"name":"Rex","categoryId":1,}`, `{"name":"Rex",/**/"categoryId":1}`,
			`{'name':'Rex','categoryId':1}`, "\ufeff" + object, "{\x00}\x00",
			modelNamed("\"a\nb\""), modelNamed(`"\x41"`),
			modelNumbered("01"), modelNumbered("+1"), modelNumbered("NaN"), modelNumbered("0x10"),
			deep, `{"a":` + deep + strings.Repeat("]", 20000) + "}",
		},
	} {
		for _, body := range bodies {
			if got := modelRefused(t, body); !strings.Contains(got, want) {
				t.Errorf("of %.100q the message is %q, want it to say %q", body, got, want)
			}
		}
	}
}

// TestAFieldThatIsWrongIsRefused holds JSON texts of each field, with commas between them.
func TestAFieldThatIsWrongIsRefused(t *testing.T) {
	refuse := func(field, want, literals string) {
		t.Helper()
		for literal := range strings.SplitSeq(literals, ", ") {
			body := map[string]string{"name": `"Rex"`, "categoryId": "1", "status": `"sold"`}
			body[field] = literal
			got := modelRefused(t, fmt.Sprintf(`{"name":%s,"categoryId":%s,"status":%s}`,
				body["name"], body["categoryId"], body["status"]))
			wantEqual(t, got, field+": "+want, "of ", literal, " the message")
		}
	}
	refuse("name", "must be a string", `null, 1, true, ["Rex"], {}`)
	refuse("name", "must not be blank", `""`)
	for _, space := range " \u00a0\u1680\u2000\u2001\u2007\u200a\u2028\u2029\u202f\u205f\u3000" {
		refuse("name", "must not be blank", `"`+string(space)+` "`)
	}
	for _, long := range []string{
		strings.Repeat("x", 201),
		strings.Repeat("é", 201),
		strings.Repeat(`\ud83d\ude00`, 201),
		strings.Repeat("x", 200) + " ",
	} {
		refuse("name", "must have at most 200 characters", `"`+long+`"`)
	}
	const half = "holds half of a surrogate pair"
	refuse("name", half, `"\ud83d", "\uD83D", "\ude00", "\uDE00", `+ // halves alone
		`"\ud800", "\uDbFf", "\uDc00", "\udFFF"`)
	refuse("name", half, `"\ude00\ud83d", "\ud83d\ud83d", "\ude00\ude00"`) // that do not fit
	refuse("name", half, `"\ud83d\ud83d\ude00", "\ud83d\ude00\ude00"`)     // beside a pair
	refuse("name", half, `"\ud83dx\ude00", "\ud83d\ud83d\ude00\ude00", `+  // a parted pair
		`"\ud83d\u0041", "\ud83d\\ude00", "\\\ud83d", "\\\\\ude00", "Rex \udc00"`)
	refuse("name", half, `"\\ufffd\ud83d", "\ufffd\ud83d", "`+"\ufffd"+`\ud83d"`)
	refuse("name", "must not hold control characters", `"a\tb", "a\nb", "a\rb", "a\bb", "a\fb", `+
		`"a\u0000b", "a\u001bb", "a\u001Fb", "a\u007fb", "a\u0080b", "a\u0085b", "Rex\t"`+
		", \"a\x7fb\", \"a\u009fb\"")
	refuse("categoryId", "must be an integer of at most 64 bits, without fraction or exponent",
		`null, true, "1", "", [1], {}, 1.0, -1.5, 1e2, 1E2, 0e0, 100e-2, 9223372036854775808, `+
			`-9223372036854775809, 18446744073709551616, 1`+strings.Repeat("0", 400))
	refuse("status", "must be one of available, pending, sold",
		`null, 1, true, [], ["sold"], {}, "", "Sold", "SOLD", " sold", "sold ", "adopted", `+
			`"sold\u0000", "\ud800"`)
}

func TestOneMessageNamesEveryProblemInTheOrderOfTheBody(t *testing.T) {
	integer := "must be an integer of at most 64 bits, without fraction or exponent"
	words := strings.NewReplacer("REQUIRED", "name: is required; categoryId: is required",
		"TWICE", "is given more than once", "INTEGER", integer, "TEXT", "must be a string",
		"STATUS", "must be one of available, pending, sold")
	for body, want := range rowsOf(t, words.Replace(`
		{} => REQUIRED
		{"categoryId":1} => name: is required
		{"name":"Rex"} => categoryId: is required
		{"status":"sold"} => REQUIRED
		{"status":1,"categoryId":"1","name":2} => status: STATUS; categoryId: INTEGER; name: TEXT
		{"name":"Rex","categoryId":1,"age":3} => "age": is unknown
		{"id":1,"name":"Rex","categoryId":1} => "id": is unknown
		{"Name":"Rex"} => "Name": is unknown; REQUIRED
		{"":1,"name":"Rex","categoryId":1} => "": is unknown
		{"a\"\nb":1,"name":"Rex","categoryId":1} => "a\"\nb": is unknown
		{"name":"Rex","name":"Rex","categoryId":1} => name: TWICE
		{"name":"","name":"Rex","categoryId":1} => name: must not be blank; name: TWICE
		{"name":"Rex","name":null,"categoryId":1} => name: TWICE
		{"name":"\t","categoryId":1} => name: must not be blank and must not hold control characters
		{"x":[1],"name":null} => "x": is unknown; name: must be a string; categoryId: is required
		{"x":[1,{"y":2},3],"z":{"name":1}} => "x": is unknown; "z": is unknown; REQUIRED
		{"name":"Rex","\u006eame":"Max","categoryId":1} => name: TWICE
		{"categoryId":1,"name":"Rex","categoryId":1} => categoryId: TWICE
		{"status":"sold","name":"R","status":"sold","categoryId":1} => status: TWICE`)) {
		wantEqual(t, modelRefused(t, body), want, "of ", body, " the message")
	}
}

// wireOf is a pet as clients read it.
func wireOf(pet Pet) wirePet {
	return wirePet{
		ID:         pet.ID,
		Name:       pet.Name,
		CategoryID: pet.CategoryID,
		Status:     string(pet.Status),
	}
}

// modelOddPets have names that encoders like to disagree on.
var modelOddPets = petsNamed(
	"Rex", `"`, `\`, `"\"\\"`, `\u0041\n`, "/<b>&amp;</b>'", "\u2028\u2029", "x\u2028",
	"\u2027\u202a", "😀👩‍🚀\U0010FFFF", "\ufffd\ufeff\ufffe", " e\u0301 \u00a0",
	strings.Repeat(`"`, maxName), strings.Repeat("\U00010000", maxName), "null", `{"id":1}`,
	"%s ?1 $1")

// petsNamed are pets of all statuses and odd categories.
func petsNamed(names ...string) (pets []NewPet) {
	statuses := []PetStatus{Available, Pending, Sold}
	categories := []int64{1, math.MinInt64, math.MaxInt64, 0, -1}
	for i, name := range names {
		pets = append(pets, NewPet{
			Name:       name,
			CategoryID: categories[i%len(categories)],
			Status:     statuses[i%len(statuses)],
		})
	}
	return pets
}

// TestPetsHaveTheSameBytesEverywhere: in a 201, and later in a response, a page, and an export.
// They are those that SQLite's json_object writes, as pets of other programs show too. Only what
// ends a line elsewhere is escaped.
func TestPetsHaveTheSameBytesEverywhere(t *testing.T) {
	pets := slices.Clone(modelOddPets)
	for c := range rune(0xa0) { // no client may send these, but they can be stored
		if unicode.IsControl(c) {
			pets = append(pets, petsNamed("a"+string(c)+"b")...)
		}
	}
	engines(t, func(t *testing.T, db string) {
		s := openDatabase(t, db)
		var listed []string
		for _, odd := range pets {
			pet := Pet{ID: mustCreate(t, s, odd), NewPet: odd}
			var want string
			_, err := s.readInto(t.Context(), sqlOf(`SELECT json_object('id', id, 'name', name,
				'categoryId', category_id, 'status', CASE status
					WHEN 2 THEN 'available' WHEN 3 THEN 'pending' WHEN 4 THEN 'sold' END)
				FROM pets WHERE id = ?`, pet.ID), &want)
			must(t, err)
			want = strings.ReplaceAll(want, "\u2028", `\u2028`)
			want = strings.ReplaceAll(want, "\u2029", `\u2029`)
			got, err := s.pet(pet.ID)
			must(t, err)
			created := string(pet.appendJSON(nil))
			if created != want || string(got.body) != want {
				t.Errorf("the 201 is %s, the response %s, want %s", created, got.body, want)
			}
			listed = append(listed, want)
		}
		page, err := s.page("", maxLimit, 0)
		must(t, err)
		wantEqual(t, string(page.body), "["+strings.Join(listed, ",")+"]", "the page")
		wantEqual(t, exportedPets(t, db), strings.Join(listed, "\n")+"\n", "what is exported")
	})
}

// TestTimesAreToldInUTC, wherever the program runs: their texts end in Z, and days begin in UTC.
func TestTimesAreToldInUTC(t *testing.T) {
	wantEqual(t, instantOf(testTime).time().Location(), time.UTC, "the time zone")
}

// TestCodesAreAClosedList: clients may switch on these, and on no others.
func TestCodesAreAClosedList(t *testing.T) {
	wantEqual(t, len(statusOfCode), len(wireCodes), "the number of codes")
	for code, status := range wireCodes {
		text, err := json.Marshal(newError(ErrorCode(code), "%d of %q", 1, "x"))
		want := fmt.Sprintf(`{"code":%q,"message":"1 of \"x\"","status":%d}`, code, status)
		if err != nil || string(text) != want {
			t.Errorf("the error is %s, %v; want %s", text, err, want)
		}
	}
}

// TestNamesOfKeysDoNotTurnText, while those of pets are stored as they are sent.
func TestNamesOfKeysDoNotTurnText(t *testing.T) {
	const turning = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
	for c := rune(0xa0); c < 0x3000; c++ {
		name := "x" + string(c) + "y"
		turns := strings.ContainsRune(turning, c)
		if problem := checkKeyName(name); (problem != "") != turns {
			t.Errorf("of a key with %U in its name it is said: %q", c, problem)
		}
		wantEqual(t, checkName(name),
			"", fmt.Sprintf("what is said of a pet with %U in its name", c))
	}
	if checkKeyName("كلب צ 7") != "" || checkKeyName(" ") == "" || checkKeyName("a\nb") == "" {
		t.Error("the rules of pets' names do not hold for names of keys")
	}
}

// TestANameShowsSomething: letters, symbols and marks with a width do.
func TestANameShowsSomething(t *testing.T) {
	const hidden = " \u00a0\u2003\u2028\u3000\u00ad\u061c\u180e\u200b\u200d\u202e\u2060\ufeff" +
		"\U000e0041\u0301\u034f\ufe0f\U000e0100\u115f\u1160\u2800\u3164\uffa0"
	for _, c := range hidden + "aé猫🐈.\u0903\u20dd\ue000\u0378\ufffd" {
		want := ""
		if strings.ContainsRune(hidden, c) {
			want = "must not be blank"
		}
		for _, name := range []string{string(c), hidden + string(c)} {
			wantEqual(t, checkName(name), want, fmt.Sprintf("what is said of the name %+q", name))
		}
		wantEqual(t, checkName("x"+string(c)),
			"", fmt.Sprintf("what is said of the name x and %U", c))
	}
}

// modelHostile are texts, to be repeated, that make a careless search begin anew at each of them.
var modelHostile = []string{
	"://pet_live_a", `\"://pet_live_a`, "://", "://a", "://a@", `://a@"`, `://"`, `://\`, `://\"`,
	`\`, "://pet_live_a@", `://pet_test_a"`, "pet_live_a", "pet_live_", "pet_",
	"PET_TEST_0:", "@", "a",
	"\xff://", "://🐈pet_live_a",
}

// TestWhatIsSentIsRedactedInLinearTime: one text takes at most eight times as long as its length in
// 32 short texts. A search that begins anew everywhere takes 32 times as long, each time; what else
// runs here may slow some of the tries down.
func TestWhatIsSentIsRedactedInLinearTime(t *testing.T) {
	for where, use := range map[string]func(text string){
		"a text":            func(text string) { redact(text) },
		"a line of the log": func(text string) { _, _ = redactor{io.Discard}.Write([]byte(text)) },
		"a field of a body": func(text string) {
			field, _ := json.Marshal(text)
			modelRefused(t, `{`+string(field)+`:1}`)
		},
		"a query": func(text string) {
			query := &url.URL{RawQuery: url.QueryEscape(text)}
			_, err := parsePageRequest(&http.Request{URL: query})
			if err == nil {
				t.Error("the query is taken")
			}
		},
	} {
		for _, part := range modelHostile {
			text := "://" + strings.Repeat(part, 512/len(part))
			whole := strings.Repeat(text, 32)
			var short, long time.Duration
			for try := 0; try == 0 || long > 8*short && try < 20; try++ {
				began := time.Now()
				for range 32 {
					use(text)
				}
				short = time.Since(began)
				use(whole)
				long = time.Since(began) - short
			}
			if long > 8*short {
				t.Errorf("%s: 32 times %q take %v, and in one text %v", where, part, short, long)
			}
		}
	}
}

// TestAFieldIsLookedForAmongFewNames, however often which names are in a body.
func TestAFieldIsLookedForAmongFewNames(t *testing.T) {
	const fields = `,"id":1,"name":"Rex","categoryId":1,"status":"sold","x":1`
	body := `{"y":1` + strings.Repeat(fields, 1000) + "}"
	_, given, wrong := readFields([]byte(body), []string{"id"})
	wantEqual(t, given,
		[]string{"id", "name", "categoryId", "status"}, "the names among which they are looked for")
	wantEqual(t, wrong.count, 1+5*1000-4, "the number of wrong fields")
}

// TestNoSecretIsShown holds lines with secrets, and what is left of them. The fields around a
// password stay.
func TestNoSecretIsShown(t *testing.T) {
	lines := maps.Collect(rowsOf(t, `
		pet_live_abc => pet_…
		my PET_test_aB0-key => my PET_…-key
		pet_live_ => pet_live_
		pet_prod_abc => pet_prod_abc
		http://localhost:4001 => http://localhost:4001
		http://anna:secret@n1:4001 => http://…n1:4001
		http://anna:t@p@n1,http://b:c@d => http://…d
		"http://a:b@c" "http://d:e@f" => "http://…c" "http://…f"
		"http://a:b\"b@c" => "http://…c"
		http://a:pet_live_x@y/pet_live_x and pet_test_y => http://…y/pet_… and pet_…
		://pet_live_a://pet_live_b => ://pet_…://pet_…
		pet_live_a://pet_live_b@pet_live_c => pet_…://…pet_…

		at=http://n1:8080/v1 db=/var/pets@1/a.db => at=http://n1:8080/v1 db=/var/pets@1/a.db
		at=http://n1 msg="hello anna@n2" n=1 => at=http://n1 msg="hello anna@n2" n=1
		at="http://n1" msg="hello anna@n2" n=1 => at="http://n1" msg="hello anna@n2" n=1
		{"at":"http://n1","to":"anna@n2","n":1} => {"at":"http://n1","to":"anna@n2","n":1}
		{"at":"http://a:b@n1","to":"c@n2"} => {"at":"http://…n1","to":"c@n2"}
		a=http://a:b@n1 b=https://c:d@n2 c=e@f => a=http://…n1 b=https://…n2 c=e@f
		a=http://a:b/c@d@[::1]:4001/x b=e@f => a=http://…[::1]:4001/x b=e@f
		a="http://a:b \"c@d" b="e@f" => a="http://…d" b="e@f"
		a="http://a:b\\" b="c@d" => a="http://a:b\\" b="c@d"
		a="Get \"http://a:b c@d\": no" b=e@f => a="Get \"http://…d\": no" b=e@f
		a="http://a:b c => a="http://a:b c
		a="http://a:b c@d => a="http://…d
		a=\ => a=\
		"\ => "\`))
	maps.Copy(lines, map[string]string{
		"": "",
		"http://a:b@n1\nhttp://c:d@n2\te@f\x00g@h": "http://…n1\nhttp://…n2\te@f\x00g@h",
		"http://a:b@n1\x00c@d":                     "http://…n1\x00c@d",
		"\"http://a:b\\\nc@d\" e@f":                "\"http://…d\" e@f",
	})
	for text, want := range lines {
		wantEqual(t, redact(text), want, "what is shown of ", text)
		var log bytes.Buffer
		n, err := redactor{&log}.Write([]byte(text))
		must(t, err)
		if log.String() != want || n != len(text) {
			t.Errorf("of %q %q is logged (%d bytes), want %q", text, log.String(), n, want)
		}
	}
	// A text that somebody has sent is one field, whatever is in it.
	wantEqual(t, fmt.Sprint(sentText(`http://a:b "c d@n1`)),
		`"http://…n1"`, "what is shown of a text that was sent")
}

// FuzzDecodeNewPet holds what is accepted against the rules and against encoding/json.
func FuzzDecodeNewPet(f *testing.F) {
	for _, odd := range modelOddPets {
		f.Add([]byte(modelNamed(strconv.QuoteToASCII(odd.Name))))
	}
	f.Add([]byte(`{"x":{"name":[1,{"a":2}]},"name":"Rex","categoryId":1e2,"name":"\ud83d"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		pet, err := decodeNewPet(body)
		if err != nil {
			modelRefused(t, string(body))
			return
		}
		wire := wirePet{Status: "available"}
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(&wire)
		if err != nil || wire != wireOf(Pet{NewPet: pet}) {
			t.Fatalf("%q is read as %+v, and by encoding/json as %+v, %v", body, pet, wire, err)
		}
		length := utf8.RuneCountInString(pet.Name)
		if checkName(pet.Name) != "" || length < 1 || length > 200 || !pet.Status.known() {
			t.Fatalf("%q is read as %+v", body, pet)
		}
		// Without its id, the response is a body that makes the same pet again.
		stored := Pet{ID: 1, NewPet: pet}
		again := strings.Replace(string(stored.appendJSON(nil)), `"id":1,`, "", 1)
		if back, err := decodeNewPet([]byte(again)); err != nil || back != pet {
			t.Fatalf("%s is read as %+v, %v; want %+v", again, back, err, pet)
		}
	})
}

// TestWhatIsLongerThanAnyFieldIsNotDecoded: it costs little, and is told as what it is.
func TestWhatIsLongerThanAnyFieldIsNotDecoded(t *testing.T) {
	const head, tail = `{"name":"`, `","categoryId":1}`
	blank := strings.Repeat(`\u0300`, 201*2) // 2,412 bytes, and a character needs at most 12
	_, err := decodeNewPet([]byte(head + blank + tail))
	wantEqual(t, err.Error(), "invalid_body: name: "+tooLong, "the problem of a long name")
	_, err = decodeNewPet([]byte(head + strings.Repeat(`\ud83d\udc31`, maxName) + tail))
	must(t, err)

	escaped := "" // the longest that a name of a member can be
	for _, c := range "categoryId" {
		escaped += fmt.Sprintf(`\u%04x`, c)
	}
	pet, err := decodeNewPet([]byte(`{"\u006eame":"Rex","` + escaped + `":7}`))
	must(t, err)
	wantEqual(t, pet, NewPet{Name: "Rex", CategoryID: 7, Status: Available}, "the pet")
	_, err = decodeNewPet([]byte(`{"name":"Rex","categoryId":1,"` + escaped + `\u0061":7}`))
	wantPart(t, err.Error(), `"categoryIda": is unknown`, "the problem of a longer name")

	query := strings.Repeat("&x=1", 3000)
	_, wrong := parseQuery(httptest.NewRequest("GET", "/v1/pets?limit=1"+query, nil), "limit")
	wantEqual(t, wrong.named[0], "the query has 3001 parts, and 100 are read", "the first problem")
}
