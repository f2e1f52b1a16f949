package main

// The vocabulary: pets, errors, instants, documents and the files in web. The bodies (JSON, RFC
// 8259) and the queries of clients are read here. Reading is strict, because a request that is
// accepted with a misspelt name is a mistake found too late. Secrets are kept out of the log here,
// too. This file uses nothing of the others.

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"runtime/debug"
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
	Name       string    // 1 to maxName characters, at least one of which shows, stored as sent
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

// appendJSON appends the pet as JSON, as every response and every export has it.
func (p *Pet) appendJSON(to []byte) []byte {
	to = strconv.AppendInt(append(to, `{"id":`...), p.ID, 10)
	to = appendQuoted(append(to, `,"name":`...), p.Name)
	to = strconv.AppendInt(append(to, `,"categoryId":`...), p.CategoryID, 10)
	to = append(append(to, `,"status":"`...), p.Status...)
	return append(to, `"}`...)
}

// quote returns a text as a JSON string. Texts are handed to SQL in this form: see statement.
func quote(text string) string { return string(appendQuoted(nil, text)) }

// appendQuoted appends a UTF-8 text as a JSON string. It escapes what JSON demands, and the two
// characters that end a line in JavaScript and in Unicode: some readers of lines split there.
func appendQuoted(to []byte, text string) []byte {
	text = escapes.Replace(text)
	if strings.Contains(text, lineEndStart) {
		text = lineEnds.Replace(text)
	}
	to = append(to, '"')
	to = append(to, text...)
	return append(to, '"')
}

// lineEnds is not part of escapes, which would take ten times as long with characters of three
// bytes. It comes after escapes, which otherwise would escape its backslash.
var lineEnds = strings.NewReplacer("\u2028", `\u2028`, "\u2029", `\u2029`)

const lineEndStart = "\xe2\x80" // in UTF-8, both begin with these bytes

var escapes = newEscapes()

func newEscapes() *strings.Replacer {
	pairs := []string{
		`"`, `\"`, `\`, `\\`, "\b", `\b`, "\t", `\t`, "\n", `\n`, "\f", `\f`, "\r", `\r`,
	}
	for c := rune(0); c < ' '; c++ { // of two pairs for a character, NewReplacer uses the first
		pairs = append(pairs, string(c), fmt.Sprintf(`\u%04x`, c))
	}
	return strings.NewReplacer(pairs...)
}

// ErrorCode is the machine-readable part of an Error. The list is closed: clients may switch on it.
type ErrorCode string

// Every code. Its status stands in statusOfCode.
const (
	CodeInvalidBody          ErrorCode = "invalid_body"
	CodeInvalidParameter     ErrorCode = "invalid_parameter"
	CodeMissingKey           ErrorCode = "missing_key"
	CodeInvalidKey           ErrorCode = "invalid_key"
	CodeNotFound             ErrorCode = "not_found"
	CodeMethodNotAllowed     ErrorCode = "method_not_allowed"
	CodeOperationRemoved     ErrorCode = "operation_removed"
	CodeBodyTooLarge         ErrorCode = "body_too_large"
	CodeUnsupportedMediaType ErrorCode = "unsupported_media_type"
	CodeIdempotencyKeyReused ErrorCode = "idempotency_key_reused"
	CodeRateLimited          ErrorCode = "rate_limited"
	CodeKeyBanned            ErrorCode = "key_banned"
	CodeInternalError        ErrorCode = "internal_error"
	CodeUnavailable          ErrorCode = "unavailable"
)

// statusOfCode holds the HTTP status of every code.
var statusOfCode = map[ErrorCode]int{
	CodeInvalidBody:          http.StatusBadRequest,
	CodeInvalidParameter:     http.StatusBadRequest,
	CodeMissingKey:           http.StatusUnauthorized,
	CodeInvalidKey:           http.StatusUnauthorized,
	CodeNotFound:             http.StatusNotFound,
	CodeMethodNotAllowed:     http.StatusMethodNotAllowed,
	CodeOperationRemoved:     http.StatusGone,
	CodeBodyTooLarge:         http.StatusRequestEntityTooLarge,
	CodeUnsupportedMediaType: http.StatusUnsupportedMediaType,
	CodeIdempotencyKeyReused: http.StatusUnprocessableEntity,
	CodeRateLimited:          http.StatusTooManyRequests,
	CodeKeyBanned:            http.StatusTooManyRequests,
	CodeInternalError:        http.StatusInternalServerError,
	CodeUnavailable:          http.StatusServiceUnavailable,
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
// request, callers pass a sentText, so that an Error is never longer than 4 KB of JSON: nobody gets
// a large response for a small request.
func newError(code ErrorCode, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Status: statusOfCode[code]}
}

// sentText is a text of a request inside a message: quoted, without secrets, because messages end
// up in logs, and cut after maxQuoted characters.
type sentText string

const maxQuoted = 100

func (t sentText) String() string {
	// Passwords are removed before the cut: to find one, the @ behind it is needed. A key that was
	// cut is still found, if anything secret of it is left.
	text := withoutPassword(string(t))
	if characters := []rune(text); len(characters) > maxQuoted {
		text = string(characters[:maxQuoted]) + "…"
	}
	return strconv.QuoteToGraphic(withoutKeys(text))
}

// sentLiteral is the sentText of a JSON string. It is decoded only if problems.add formats it, and
// so not for all of a body's thousands of names.
type sentLiteral []byte

func (t sentLiteral) String() string { return sentText(unquote(t)).String() }

// problems are what is wrong with a request. All are counted, and the first ones are named.
type problems struct {
	count int
	named []string
	size  int // of those named, in bytes of JSON; above maxProblemsSize once one did not fit
}

const (
	maxProblems     = 20   // that are named
	maxProblemsSize = 3800 // bytes of JSON, which leave room for the rest of the Error within 4 KB
)

// add counts a problem, and names it if it fits and no other was left out before.
func (w *problems) add(format string, args ...any) {
	w.count++
	if w.count > maxProblems || w.size > maxProblemsSize {
		return
	}
	problem := fmt.Sprintf(format, args...)
	encoded, _ := json.Marshal(problem) // a string always has a form in JSON
	// The first that does not fit makes the size too large, so that none after it is named.
	w.size += len(encoded)
	if w.size <= maxProblemsSize {
		w.named = append(w.named, problem)
	}
}

// err is the Error that names the problems, or nil if there are none.
func (w *problems) err(code ErrorCode) error {
	if w.count == 0 {
		return nil
	}
	message := strings.Join(w.named, "; ")
	if more := w.count - len(w.named); more > 0 {
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
// survives a restart. The same body may be sent with a Link header and without: the two responses
// have two ETags, by a character that is hashed with the body. A body that is always sent with the
// same Link, as a pet is, needs no such difference. The body must be the caller's own: what follows
// it in its array may be overwritten.
func newDocument(body []byte, hasLink bool) document {
	mark := byte('.')
	if hasLink {
		mark = '+'
	}
	sum := sha256.Sum256(append(body, mark))
	tag := base64.RawURLEncoding.EncodeToString(sum[:12])
	return document{
		body: bytes.Clone(body), // without its spare capacity, since it is remembered
		etag: []string{`"` + tag + `"`},
	}
}

// panicAsError returns a panic as an error. Otherwise it would end the process, or a connection
// without a response.
func panicAsError(do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return do()
}

// gzipped compresses a body that is made once, so it is as small as it can be.
func gzipped(body string) []byte {
	var out bytes.Buffer
	z, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level exists
	_, _ = io.WriteString(z, body)                          // memory takes all
	_ = z.Close()
	return out.Bytes()
}

// acceptsGzip reports whether Accept-Encoding names gzip, and not with the weight 0, which forbids
// it (RFC 9110 section 12.5.3).
func acceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(strings.Join(r.Header["Accept-Encoding"], ","), ",") {
		name, parameter, _ := strings.Cut(coding, ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		_, weight, given := strings.Cut(parameter, "=")
		if !given {
			return true
		}
		q, err := strconv.ParseFloat(strings.TrimSpace(weight), 64)
		return err == nil && q > 0
	}
	return false
}

// keyText matches an API key, or the beginning of one.
var keyText = regexp.MustCompile(`(?i)(pet_)(?:live|test)_[0-9a-z]+`)

// withoutKeys leaves only pet_… of each API key in a text.
func withoutKeys(text string) string { return keyText.ReplaceAllString(text, "$1…") }

// withoutPassword takes away all up to the last @, so redact gives it one field of a line at a
// time. A field is a quoted text, whose last quote may be missing, or a run of characters without
// quotes, white space and control characters: key="value" is two fields, key= and "value". Whoever
// logs a text that may hold white space has to quote it.
const (
	quotedField = `"([^"\\]|\\.)*"?`
	plainField  = `[^"\x00-\x20]+`
)

var fieldText = regexp.MustCompile("(?s)" + quotedField + "|" + plainField)

// redact takes secrets out of a line of a log, or out of another text that quotes in fields what
// somebody has sent or typed.
func redact(line string) string {
	return withoutKeys(fieldText.ReplaceAllStringFunc(line, withoutPassword))
}

// redactAsOneField takes secrets out of a text whose fields cannot be told apart, such as an error
// about what was typed. It takes the whole text for one field, so it may remove more than redact.
func redactAsOneField(text string) string { return withoutKeys(withoutPassword(text)) }

// withoutPassword takes the user and password of URLs out of a field. A password may hold any
// character. So everything from the first :// to the last @ of the field is taken out.
func withoutPassword(field string) string {
	before, after, _ := strings.Cut(field, "://")
	if at := strings.LastIndexByte(after, '@'); at >= 0 {
		return before + "://…" + after[at+1:]
	}
	return field
}

// checkMediaType refuses a body that is not plain JSON. A type that is missing counts as JSON. What
// is small when it is packed may be huge when it is not, so nothing is unpacked.
func checkMediaType(w http.ResponseWriter, r *http.Request) error {
	if len(r.Header["Content-Type"]) > 1 {
		return newError(CodeUnsupportedMediaType, "Content-Type is given more than once")
	}
	if given := r.Header.Get("Content-Type"); given != "" {
		mediaType, _, err := mime.ParseMediaType(given)
		if err != nil || mediaType != "application/json" {
			return newError(CodeUnsupportedMediaType, "the body must be application/json")
		}
	}
	coding := strings.Join(r.Header["Content-Encoding"], ",")
	if coding != "" && !strings.EqualFold(coding, "identity") {
		// RFC 9110 section 15.5.16 wants this header, and section 12.5.3 wants it only here.
		w.Header().Set("Accept-Encoding", "identity")
		return newError(CodeUnsupportedMediaType, "the body must have no Content-Encoding")
	}
	return nil
}

var errTooLarge = newError(CodeBodyTooLarge, "the body must have at most %d bytes", maxBody)

// parseIdempotencyKey returns the header, or "" if there is none.
func parseIdempotencyKey(r *http.Request) (string, error) {
	values := r.Header["Idempotency-Key"]
	if values == nil {
		return "", nil
	}
	// If there are several values, the space between them is refused as an invisible character.
	key := strings.Join(values, " ")
	invisible := func(c rune) bool { return c <= ' ' || c > '~' }
	if key == "" || len(key) > 255 || strings.ContainsFunc(key, invisible) {
		return "", newError(CodeInvalidParameter,
			"Idempotency-Key must be one value of 1 to 255 visible ASCII characters")
	}
	return key, nil
}

// parseID takes a positive int64 in its one canonical spelling, since in a path it is an address.
func parseID(s string) (id int64, ok bool) {
	id, err := strconv.ParseInt(s, 10, 64)
	return id, err == nil && id > 0 && strconv.FormatInt(id, 10) == s
}

// decodeNewPet reads the body of createPet. Whatever is wrong with it is an *Error invalid_body. If
// it is an object, the message names the problems by field: "name: what is wrong; categoryId: what
// is wrong". The fields in ignored may be there with any value, and are not read.
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

// checkObject returns why the body is no JSON object, or "".
func checkObject(body []byte) string {
	switch {
	case len(body) == 0:
		return "the body is empty; it must be a JSON object with name and categoryId"
	case !utf8.Valid(body):
		return "the body is not valid UTF-8"
	case !json.Valid(body):
		// This needs no sentText: the error quotes one character at most.
		err := json.Unmarshal(body, &json.RawMessage{})
		return fmt.Sprintf("the body is not valid JSON: %v", err)
	case body[0] != '{':
		return "the body must be a JSON object with name and categoryId"
	}
	return ""
}

// readFields reads the fields of a JSON object whose syntax is right. given are the names found in
// it, those of fields and ignored ones, each once.
//
// Decoding into a struct would accept duplicate, unknown and miscased fields, and the tokens of
// json.Decoder take nearly three times as long.
func readFields(object []byte, ignored []string) (pet NewPet, given []string, wrong problems) {
	pet.Status = Available // without a status, those who look for pets by status would not find it
	given = make([]string, 0, 4)
	rest := bytes.TrimSpace(object[1 : len(object)-1])
	for len(rest) > 0 {
		var literal, value []byte
		literal, rest = cutValue(rest, ':')
		value, rest = cutValue(rest, ',')
		name := memberName(literal)
		switch {
		case !slices.Contains(petFields, name) && !slices.Contains(ignored, name):
			wrong.add("%s: is unknown", sentLiteral(literal))
		case slices.Contains(given, name):
			wrong.add("%s: is given more than once", name)
		default:
			given = append(given, name)
			if problem := pet.readField(name, value); problem != "" {
				wrong.add("%s: %s", name, problem)
			}
		}
	}
	return pet, given, wrong
}

// memberName decodes the name of a member. For a name that no field can have, it may return "". A
// body may have thousands of names, and json.Unmarshal takes ten times as long as strconv.Unquote,
// which reads strings of Go. These lack two escapes of JSON, \/ and those of surrogates, and no
// field has a character that is written so.
func memberName(literal []byte) string {
	// The longest name that any field has, if each of its characters is escaped.
	const longest = len(`""`) + len("categoryId")*len(`\u0000`)
	if len(literal) > longest {
		return ""
	}
	name, _ := strconv.Unquote(string(literal)) // "" with an error
	return name
}

// cutValue splits JSON whose syntax is right around the first separator that stands outside of
// strings, arrays and objects. Without one, all of it is the value.
func cutValue(text []byte, separator byte) (value, rest []byte) {
	depth := 0 // of the brackets and braces that are open
	quoted := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quoted && c == '\\':
			i++ // past what is escaped, which may be a quote
		case c == '"':
			quoted = !quoted
		case quoted: // brackets and separators are only text here
		case c == separator && depth == 0:
			return bytes.TrimSpace(text[:i]), text[i+1:]
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
	return bytes.TrimSpace(text), nil
}

var petFields = []string{"name", "categoryId", "status"}

// readField reads the value of a field, and returns what is wrong with it, or "". The value of an
// ignored field is not read.
func (n *NewPet) readField(name string, value []byte) (problem string) {
	switch name {
	case "name":
		n.Name, problem = decodeName(value)
	case "categoryId":
		var err error
		n.CategoryID, err = strconv.ParseInt(string(value), 10, 64)
		if err != nil {
			return "must be an integer of at most 64 bits, without fraction or exponent"
		}
	case "status":
		n.Status = PetStatus(unquote(value))
		if !n.Status.known() {
			return "must be one of available, pending, sold"
		}
	}
	return problem
}

// unquote is the text of a JSON string whose syntax is right, or "" of another value.
func unquote(literal []byte) (text string) {
	if literal[0] == '"' && bytes.IndexByte(literal, '\\') < 0 {
		return string(literal[1 : len(literal)-1])
	}
	_ = json.Unmarshal(literal, &text)
	return text
}

// decodeName returns the text of a name and what is wrong with it, or "".
func decodeName(value []byte) (name, problem string) {
	if value[0] != '"' {
		return "", "must be a string"
	}
	// A character takes two escapes at most: a surrogate pair. A longer name is neither decoded nor
	// searched.
	if len(value) > len(`""`)+maxName*len(`\ud83d\udc31`) {
		return "", tooLong
	}
	mayHoldHalf := bytes.Contains(value, []byte(`\u`)) // few names have such an escape
	if mayHoldHalf && !pairedText.Match(value) {
		return "", "holds half of a surrogate pair"
	}
	name = unquote(value)
	return name, checkName(name)
}

// pairedText matches a JSON string whose surrogates all come in pairs. For one that stands alone,
// RFC 8259 section 8.2 promises nothing, and json.Unmarshal puts U+FFFD in its place. The whole
// string must be a row of these pieces. Its syntax is right, so . is a hexadecimal digit there. A
// half that stands alone, as in "\ud83d", is none of the pieces, and is not matched.
var pairedText = regexp.MustCompile("^(" + strings.Join([]string{
	`[^\\]`,                              // a character as it is, or a quote around them
	`\\[^u]`,                             // an escape of two characters, such as \n
	`\\u[^dD]...`,                        // the number of a character that does not begin with D
	`\\u[dD][0-7]..`,                     // one from D000 to D7FF, below the surrogates
	`\\u[dD][89abAB]..\\u[dD][c-fC-F]..`, // a pair: D800 to DBFF, and DC00 to DFFF
}, "|") + ")*$")

var tooLong = fmt.Sprintf("must have at most %d characters", maxName)

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
	refuse(utf8.RuneCountInString(name) > maxName, tooLong)
	refuse(strings.ContainsFunc(name, unicode.IsControl), "must not hold control characters")
	return strings.Join(wrongs, " and ")
}

// shows reports whether a character alone can be seen. Control characters count as if they could:
// checkName refuses them by itself. Those that are listed are the fillers of Hangul and the empty
// pattern of Braille. The pattern in web/openapi.json says the same, up to U+FFFF.
func shows(c rune) bool {
	hidden := unicode.In(c, unicode.White_Space, unicode.Z, unicode.Cf, unicode.Mn)
	return !hidden && !strings.ContainsRune("\u115f\u1160\u2800\u3164\uffa0", c)
}

// parseQuery reads a query string. Names other than the known ones, and names given twice, are
// problems: a misspelt filter must not return everything.
func parseQuery(r *http.Request, known ...string) (query url.Values, wrong problems) {
	if r.URL.RawQuery == "" {
		return nil, wrong
	}
	// No operation takes so many parts. Those beyond are counted, and neither read nor sorted.
	const maxParts = 100
	parts := strings.SplitN(r.URL.RawQuery, "&", maxParts+1)
	if len(parts) > maxParts {
		wrong.add("the query has %d parts, and %d are read",
			1+strings.Count(r.URL.RawQuery, "&"), maxParts)
		parts = parts[:maxParts]
	}
	query, err := url.ParseQuery(strings.Join(parts, "&"))
	if err != nil {
		wrong.add("the query string cannot be parsed: %v", err) // it quotes three bytes at most
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
	limit     int
	status    PetStatus // "" for all
	after     int64     // list ids above this one
	keptQuery string    // "limit=…&status=…&" as far as given, for the next page's address
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
		page.keptQuery = "limit=" + strconv.Itoa(limit) + "&"
	}
	if given := query["status"]; given != nil {
		page.status = PetStatus(given[0])
		if !page.status.known() {
			wrong.add("status must be one of available, pending, sold")
		}
		page.keptQuery += "status=" + given[0] + "&" // if it is not known, keptQuery is not used
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
