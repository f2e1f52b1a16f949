package main

// The vocabulary: pets, errors, instants, documents and the files in web. The bodies (JSON, RFC
// 8259) and the queries of clients are read here. Reading is strict, because a request that is
// accepted with a misspelt name is a mistake found too late. Secrets are kept out of the log here,
// too. This file uses no other.

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// What a browser gets, the description of the API, and what a first start prints stand in files.
//
//go:embed web
var webFiles embed.FS

// webFile returns the text of a file in web.
func webFile(name string) string {
	text, _ := webFiles.ReadFile("web/" + name) // the program contains it
	return string(text)
}

// PetStatus is the availability of a pet, spelt as on the wire.
type PetStatus string

// The three states. No rule says which may follow which.
const (
	Available PetStatus = "available"
	Pending   PetStatus = "pending"
	Sold      PetStatus = "sold"
)

// known reports whether the status is one of the three, in the exact spelling.
func (s PetStatus) known() bool { return s == Available || s == Pending || s == Sold }

// NewPet is the body of createPet, after decoding and checking.
type NewPet struct {
	Name       string    // 1 to maxName characters, of which one shows, stored exactly as sent
	CategoryID int64     // any value: categories are not a resource of this service
	Status     PetStatus // Available when the body leaves it out
}

// Pet is a pet as the service returns it.
type Pet struct {
	ID int64 // from 1 upward, never reused
	NewPet
}

const (
	maxName = 200      // characters (Unicode code points) in a name
	maxBody = 64 << 10 // bytes in a request body

	maxLimit, defaultLimit = 100, 20 // pets on a page
)

// json is the pet as JSON, byte for byte as SQLite's json_object writes it in petJSON.
func (p Pet) json() string {
	return fmt.Sprintf(`{"id":%d,"name":%s,"categoryId":%d,"status":"%s"}`,
		p.ID, quote(p.Name), p.CategoryID, p.Status)
}

// quote returns a text as a JSON string. The text must be UTF-8 without control characters, as all
// names and Idempotency-Keys are once they are checked. Then only two characters need an escape.
// Such texts are sent to SQL so: see statement.
func quote(text string) string { return `"` + escapes.Replace(text) + `"` }

var escapes = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// ErrorCode is the machine-readable part of an Error. The list is closed: clients may switch on it.
type ErrorCode string

// Every code, with the HTTP status of its responses.
var (
	CodeInvalidBody          = newCode("invalid_body", http.StatusBadRequest)
	CodeInvalidParameter     = newCode("invalid_parameter", http.StatusBadRequest)
	CodeMissingKey           = newCode("missing_key", http.StatusUnauthorized)
	CodeInvalidKey           = newCode("invalid_key", http.StatusUnauthorized)
	CodeNotFound             = newCode("not_found", http.StatusNotFound)
	CodeMethodNotAllowed     = newCode("method_not_allowed", http.StatusMethodNotAllowed)
	CodeOperationRemoved     = newCode("operation_removed", http.StatusGone)
	CodeBodyTooLarge         = newCode("body_too_large", http.StatusRequestEntityTooLarge)
	CodeUnsupportedMediaType = newCode("unsupported_media_type", http.StatusUnsupportedMediaType)
	CodeIdempotencyKeyReused = newCode("idempotency_key_reused", http.StatusUnprocessableEntity)
	CodeRateLimited          = newCode("rate_limited", http.StatusTooManyRequests)
	CodeKeyBanned            = newCode("key_banned", http.StatusTooManyRequests)
	CodeInternalError        = newCode("internal_error", http.StatusInternalServerError)
	CodeUnavailable          = newCode("unavailable", http.StatusServiceUnavailable)
)

var statusOfCode = map[ErrorCode]int{}

func newCode(code ErrorCode, status int) ErrorCode {
	statusOfCode[code] = status
	return code
}

// Error is the body of every response that is not a success, and the only error type whose text
// reaches a client.
type Error struct {
	Code    ErrorCode `json:"code"`
	Message string    `json:"message"`
	Status  int       `json:"status"` // the HTTP status code
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// newError makes the Error of a code. The message is for people. Where the message quotes a
// request, callers pass a sentText, so that an Error is never longer than 4 KB of JSON.
func newError(code ErrorCode, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Status: statusOfCode[code]}
}

// sentText is a text of a request inside a message: quoted, without secrets, because messages end
// up in logs, and cut after maxQuoted characters.
type sentText string

const maxQuoted = 100

func (s sentText) String() string {
	// The @ that ends a password may be cut off. What is left of a key is still known as one.
	text := withoutPassword(string(s))
	if characters := []rune(text); len(characters) > maxQuoted {
		text = string(characters[:maxQuoted]) + "…"
	}
	return strconv.QuoteToGraphic(keyText.ReplaceAllString(text, "$1…"))
}

// problems are what is wrong with a request. All are counted, and the first ones are named.
type problems struct {
	count int
	named []string
	size  int // bytes of JSON, of those named and of the first one that did not fit
}

const (
	maxProblems     = 20   // that are named
	maxProblemsSize = 3800 // bytes of JSON, which leave room for the rest of the Error within 4 KB
)

// add counts a problem, and names it if it fits and no other was left out before.
func (p *problems) add(format string, args ...any) {
	p.count++
	if p.count > maxProblems || p.size > maxProblemsSize {
		return
	}
	problem := fmt.Sprintf(format, args...)
	encoded, _ := json.Marshal(problem) // a string always has a form in JSON
	p.size += len(encoded)
	if p.size <= maxProblemsSize {
		p.named = append(p.named, problem)
	}
}

// err is the Error that names the problems, or nil if there are none.
func (p *problems) err(code ErrorCode) error {
	if p.count == 0 {
		return nil
	}
	message := strings.Join(p.named, "; ")
	if more := p.count - len(p.named); more > 0 {
		message += fmt.Sprintf("; and %d more", more)
	}
	return newError(code, "%s", message)
}

// instant is Unix milliseconds; 0 stands for never.
type instant int64

// The lengths of the two windows of a key, in milliseconds. Their type is instant, so that they can
// be added to one.
const (
	minuteMillis instant = 60 * 1000
	dayMillis            = 24 * 60 * minuteMillis
)

// instantOf is the instant of a time, rounded down.
func instantOf(t time.Time) instant { return instant(t.UnixMilli()) }

func (i instant) time() time.Time { return time.UnixMilli(int64(i)).UTC() }

// MarshalJSON implements json.Marshaler, with a time of RFC 3339 in UTC, or null for never.
func (i instant) MarshalJSON() ([]byte, error) {
	if i == 0 {
		return []byte("null"), nil
	}
	return i.time().MarshalJSON()
}

// document is a body ready to be sent, with its ETag.
type document struct {
	body []byte
	etag []string // one value, as http.Header holds it
}

// newDocument makes a strong validator from the content (RFC 9110 section 8.8.3), so that it
// survives a restart. marker differs when a header such as Link differs, so that the ETag differs
// too.
func newDocument(body, marker string) document {
	sum := sha256.Sum256([]byte(body + marker))
	tag := base64.RawURLEncoding.EncodeToString(sum[:12])
	return document{
		body: []byte(body),
		etag: []string{`"` + tag + `"`},
	}
}

// keyText matches an API key, or the beginning of one.
var keyText = regexp.MustCompile(`(?i)(pet_)(?:live|test)_[0-9A-Za-z]+`)

// redactField takes secrets out of a text that is all one quotation, for all that is known.
func redactField(text string) string {
	return keyText.ReplaceAllString(withoutPassword(text), "$1…")
}

// redact takes secrets out of a line of a log, or out of another text that quotes what somebody has
// sent or typed in fields. Its time grows with the length of the text and no faster, since
// strangers may send what they like.
func redact(line string) string {
	var shown strings.Builder
	for line != "" {
		n := fieldLength(line)
		shown.WriteString(withoutPassword(line[:n]))
		line = line[n:]
	}
	return keyText.ReplaceAllString(shown.String(), "$1…")
}

// fieldLength is the length of the first field of a line that is not empty. A field is a quoted
// string with its quotes, or reaches up to the next quote or white space. A secret with white space
// in it is quoted wherever it is logged.
func fieldLength(line string) int {
	isQuoted := line[0] == '"'
	for i := 1; i < len(line); i++ {
		c := line[i]
		switch {
		case isQuoted && c == '\\':
			i++ // past what is escaped, which may be a quote
		case isQuoted && c == '"':
			return i + 1
		case !isQuoted && (c == '"' || c <= ' '):
			return i
		}
	}
	return len(line)
}

// withoutPassword takes the user and password of URLs out of a field. A password may hold any
// character. So all from the first :// to the last @ of the field is taken for one.
func withoutPassword(field string) string {
	before, after, _ := strings.Cut(field, "://")
	if at := strings.LastIndexByte(after, '@'); at >= 0 {
		return before + "://…" + after[at+1:]
	}
	return field
}

// decodeNewPet reads the body of createPet. Whatever is wrong with it is an *Error invalid_body
// whose message names the problems by field: "name: what is wrong; categoryId: what is wrong".
// ignored names fields that may be there with any value, and are not read.
func decodeNewPet(body []byte, ignored ...string) (NewPet, error) {
	body = bytes.Trim(body, " \t\r\n")
	if problem := checkObject(body); problem != "" {
		return NewPet{}, newError(CodeInvalidBody, "%s", problem)
	}
	pet, given, wrong := readFields(body, ignored)
	for _, name := range []string{"name", "categoryId"} {
		if !slices.Contains(given, name) {
			wrong.add("%s: is required", name)
		}
	}
	return pet, wrong.err(CodeInvalidBody)
}

// readFields reads the fields of a JSON object whose syntax is right. given are the names of its
// fields, but for unknown ones. A name stands there once however often it is in the object, since
// given is searched for every field.
func readFields(object []byte, ignored []string) (pet NewPet, given []string, wrong problems) {
	pet.Status = Available
	given = make([]string, 0, 4)
	for name, value := range fieldsOf(object) {
		var err error
		problem := ""
		// An ignored field falls through every case, unless it is given twice.
		switch {
		case slices.Contains(given, name):
			wrong.add("%s: is given more than once", name)
			continue
		case name == "name":
			pet.Name, problem = decodeName(value)
		case name == "categoryId":
			pet.CategoryID, err = strconv.ParseInt(string(value), 10, 64)
			if err != nil {
				problem = "must be an integer of at most 64 bits, without fraction or exponent"
			}
		case name == "status":
			pet.Status = PetStatus(unquote(value))
			if !pet.Status.known() {
				problem = "must be one of available, pending, sold"
			}
		case !slices.Contains(ignored, name):
			wrong.add("%s: is unknown", sentText(name))
			continue
		}
		given = append(given, name)
		if problem != "" {
			wrong.add("%s: %s", name, problem)
		}
	}
	return pet, given, wrong
}

// fieldsOf iterates over the names and values of a JSON object whose syntax is right. Decoding into
// a struct would accept duplicate, unknown and miscased fields, and the tokens of json.Decoder take
// nearly three times as long. At the beginning of each turn, rest starts with the brace or the
// comma before a name, or with the brace that ends the object.
func fieldsOf(object []byte) iter.Seq2[string, []byte] {
	return func(yield func(name string, value []byte) bool) {
		for rest := object; rest[0] != '}'; {
			var name, value []byte
			name, rest = cutValue(rest[1:]) // past the brace or comma
			if len(name) == 0 {
				return // the object is empty
			}
			value, rest = cutValue(rest[1:]) // past the colon
			if !yield(unquote(name), value) {
				return
			}
		}
	}
}

// cutValue splits valid JSON text at the end of its first value. It returns the value without the
// white space around it, and the rest, which starts with the comma, colon or brace behind the
// value. depth is how many brackets and braces are open, and quoted is true inside a string.
func cutValue(text []byte) (value, rest []byte) {
	depth, quoted := 0, false
	for i := 0; ; i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++ // past what is escaped, which may be a quote
		case c == '"':
			quoted = !quoted
		case quoted: // brackets, commas and colons are only text here
		case depth == 0 && (c == ',' || c == ':' || c == '}'):
			return bytes.TrimSpace(text[:i]), text[i:]
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
}

// unquote is the text of a JSON string, or "" of another value.
func unquote(literal []byte) (text string) {
	if literal[0] == '"' && bytes.IndexByte(literal, '\\') < 0 {
		return string(literal[1 : len(literal)-1])
	}
	_ = json.Unmarshal(literal, &text)
	return text
}

// checkObject returns why the body is no JSON object, or "".
func checkObject(body []byte) string {
	switch {
	case len(body) == 0:
		return "the body is empty; it must be a JSON object with name and categoryId"
	case !utf8.Valid(body):
		return "the body is not valid UTF-8"
	case !json.Valid(body):
		err := json.Unmarshal(body, &json.RawMessage{}) // says what is wrong, and where
		return fmt.Sprintf("the body is not valid JSON: %v", err)
	case body[0] != '{':
		return "the body must be a JSON object with name and categoryId"
	}
	return ""
}

// decodeName returns the text of a name and what is wrong with it, or "".
func decodeName(value []byte) (name, problem string) {
	if value[0] != '"' {
		return "", "must be a string"
	}
	if bytes.IndexByte(value, '\\') >= 0 && !paired.Match(value) {
		return "", "holds half of a surrogate pair"
	}
	name = unquote(value)
	return name, checkName(name)
}

// checkName returns what is wrong with a name, or "".
func checkName(name string) string {
	var wrongs []string
	refuse := func(wrong bool, problem string) {
		if wrong {
			wrongs = append(wrongs, problem)
		}
	}
	refuse(!utf8.ValidString(name), "must be valid UTF-8")
	refuse(!strings.ContainsFunc(name, shows), "must not be blank")
	refuse(utf8.RuneCountInString(name) > maxName,
		"must have at most "+strconv.Itoa(maxName)+" characters")
	refuse(strings.ContainsFunc(name, unicode.IsControl), "must not hold control characters")
	return strings.Join(wrongs, " and ")
}

// shows reports whether a character alone can be seen. The characters by name are the fillers of
// Hangul and the empty pattern of Braille. The pattern in web/openapi.json says the same, up to
// U+FFFF.
func shows(c rune) bool {
	hidden := unicode.In(c, unicode.White_Space, unicode.Z, unicode.Cf, unicode.Mn)
	return !hidden && !strings.ContainsRune("\u115f\u1160\u2800\u3164\uffa0", c)
}

// paired matches a JSON string in which no \u escape is a lone half of a surrogate pair. RFC 8259
// section 8.2 calls that unpredictable, and encoding/json would replace it without a word. The
// first two digits tell a half, and the others count as any text, since the syntax is known to be
// right. The alternatives are:
//   - [^\\] is a character that is not escaped, or a digit of an escape;
//   - \\[^u] is an escape of one character;
//   - \\u[^dD] and \\u[dD][0-7] begin an escape that is no half;
//   - \\u[dD][89abAB]..\\u[dD][c-fC-F] is a first half and the beginning of its second half.
var paired = regexp.MustCompile(
	`^([^\\]|\\[^u]|\\u([^dD]|[dD][0-7]|[dD][89abAB]..\\u[dD][c-fC-F]))*$`)

// parseQuery reads a query string. Names other than the known ones, and names given twice, are
// problems: a misspelt filter must not return everything.
func parseQuery(r *http.Request, known ...string) (query url.Values, wrong problems) {
	if r.URL.RawQuery == "" {
		return nil, wrong
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		wrong.add("the query string cannot be parsed: %v", err)
	}
	for _, name := range known {
		if len(query[name]) > 1 {
			wrong.add("%s is given more than once", name)
		}
	}
	var unknown []string
	for name := range query {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		wrong.add("%s is not a query parameter of this operation", sentText(name))
	}
	return query, wrong
}

// refuseQuery is for operations without query parameters.
func refuseQuery(r *http.Request) error {
	_, wrong := parseQuery(r)
	return wrong.err(CodeInvalidParameter)
}

// pageRequest is the checked query of listPets.
type pageRequest struct {
	limit  int
	status PetStatus // "" for all
	after  int64     // list ids above this one
	filter string    // "limit=…&status=…&", or what was given of it, for the next page's address
}

// parsePageRequest checks the query of listPets. Nothing is clamped: a client
// that asks for 1000 and gets 100 would take them for all.
func parsePageRequest(r *http.Request) (pageRequest, error) {
	page := pageRequest{limit: defaultLimit}
	query, wrong := parseQuery(r, "limit", "status", "after")
	if given := query["limit"]; given != nil {
		limit, err := strconv.Atoi(given[0])
		if err != nil || limit < 1 || limit > maxLimit {
			wrong.add("limit must be an integer from 1 to %d", maxLimit)
		}
		page.limit = limit
		page.filter = "limit=" + strconv.Itoa(limit) + "&"
	}
	if given := query["status"]; given != nil {
		page.status = PetStatus(given[0])
		if !page.status.known() {
			wrong.add("status must be one of available, pending, sold")
		}
		page.filter += "status=" + given[0] + "&"
	}
	if given := query["after"]; given != nil {
		after, err := strconv.ParseInt(given[0], 10, 64)
		if err != nil || after < 0 {
			wrong.add("after must be an integer of at least 0")
		}
		page.after = after
	}
	return page, wrong.err(CodeInvalidParameter)
}
