package webui

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// An apiReference is what the page about the HTTP API shows, but for the address of the lab.
type apiReference struct {
	Groups []apiGroup
	Count  int
}

// An apiGroup is operations about the same thing.
type apiGroup struct {
	ID, Title, About string
	Operations       []apiOperation
}

// An apiOperation is one method and path.
type apiOperation struct {
	ID, Method, Path, Summary, About string
	Scope, Roles                     string // in words
	Parameters, Request, Answer      []apiField
	RequestType                      string // empty for none
	Status, AnswerAbout              string // of success
	Refusals                         string
	token                            bool
	query                            string // of the example, with its question mark
	examplePath                      string
	example                          string // the body of the example
}

// An apiField is one value that is sent or answered; those of objects within have a name with dots.
type apiField struct {
	Name, Type, About string
	Required          bool
}

// curl is the operation as a line for a terminal.
func (o *apiOperation) curl(address string) string {
	line := "curl"
	if o.Method != http.MethodGet {
		line += " -X " + o.Method
	}
	if o.token {
		line += ` -H "Authorization: Bearer $GPULAB_TOKEN"`
	}
	if o.example != "" {
		line += " \\\n  -H 'Content-Type: application/json' -d '" + strings.ReplaceAll(o.example, "'", `'\''`) + "'"
	}
	return line + " \\\n  '" + address + o.examplePath + o.query + "'"
}

// What the page reads of an OpenAPI document.
type (
	openAPI struct {
		Servers    []struct{ URL string }
		Tags       []struct{ Name, Description string }
		Paths      map[string]map[string]openAPIOperation
		Components struct{ Schemas map[string]*openAPISchema }
	}
	openAPIOperation struct {
		OperationID, Summary, Description string
		Tags                              []string
		Parameters                        []struct {
			Name, In, Description string
			Required              bool
			Schema                *openAPISchema
			Example               any
		}
		RequestBody *struct{ Content map[string]openAPIContent }
		Responses   map[string]struct {
			Description string
			Content     map[string]openAPIContent
		}
		Scope string   `json:"x-gpulab-scope"`
		Roles []string `json:"x-gpulab-roles"`
	}
	openAPIContent struct{ Schema *openAPISchema }
	openAPISchema  struct {
		Ref                 string `json:"$ref"`
		Type                openAPITypes
		Format, Description string
		Properties          map[string]*openAPISchema
		Required            []string
		Items               *openAPISchema
		Enum, Examples      []any
		Default             any
		Minimum, Maximum    *float64
		MaxLength           *int
	}
	// openAPITypes is one type or several.
	openAPITypes []string
)

// UnmarshalJSON takes both.
func (t *openAPITypes) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*t = openAPITypes{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(t))
}

// main is the type that is not null.
func (t openAPITypes) main() string {
	for _, one := range t {
		if one != "null" {
			return one
		}
	}
	return ""
}

// readAPI makes the page's content of an OpenAPI document; nothing of none.
func readAPI(text []byte) (apiReference, error) {
	if len(text) == 0 {
		return apiReference{}, nil
	}
	var doc openAPI
	if err := json.Unmarshal(text, &doc); err != nil {
		return apiReference{}, err
	}
	prefix := ""
	if len(doc.Servers) > 0 {
		prefix = doc.Servers[0].URL
	}
	var ref apiReference
	for _, tag := range doc.Tags {
		group := apiGroup{
			ID: "tag-" + strings.ReplaceAll(tag.Name, " ", "-"), Title: upperFirst(tag.Name), About: tag.Description,
		}
		for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
			for _, method := range []string{"get", "post", "put", "patch", "delete"} {
				o, there := doc.Paths[path][method]
				if there && slices.Contains(o.Tags, tag.Name) {
					group.Operations = append(group.Operations, doc.operation(prefix, path, method, &o))
				}
			}
		}
		ref.Count += len(group.Operations)
		ref.Groups = append(ref.Groups, group)
	}
	return ref, nil
}

func upperFirst(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

func (doc *openAPI) operation(prefix, path, method string, o *openAPIOperation) apiOperation {
	out := apiOperation{ID: o.OperationID, Method: strings.ToUpper(method), Path: prefix + path, Summary: o.Summary,
		About: o.Description,
		Scope: neededScope(o.Scope), Roles: rolesThatMay(o.Roles), token: o.Scope != ""}
	out.examplePath = out.Path
	var query []string
	for _, p := range o.Parameters {
		field := doc.field(p.Name, p.Schema)
		field.Required, field.About = p.Required || p.In == "path", sentences(p.Description, field.About)
		example := p.Example
		if example == nil {
			example = doc.sample(p.Name, p.Schema)
		}
		switch {
		case p.In == "path":
			field.Type += ", in the path"
			out.examplePath = strings.ReplaceAll(out.examplePath, "{"+p.Name+"}", fmt.Sprint(example))
		case p.Required:
			query = append(query, p.Name+"="+fmt.Sprint(example))
		}
		out.Parameters = append(out.Parameters, field)
	}
	if len(query) > 0 {
		out.query = "?" + strings.Join(query, "&")
	}
	if o.RequestBody != nil {
		for _, kind := range slices.Sorted(maps.Keys(o.RequestBody.Content)) {
			schema := o.RequestBody.Content[kind].Schema
			out.RequestType, out.Request, out.example = kind, doc.fields(schema), compactJSON(doc.sample("", schema))
		}
	}
	var refusals []string
	for _, status := range slices.Sorted(maps.Keys(o.Responses)) {
		answer := o.Responses[status]
		switch {
		case status >= "400":
			refusals = append(refusals, status)
		case out.Status == "":
			out.Status = status
			for _, kind := range slices.Sorted(maps.Keys(answer.Content)) {
				out.Answer = append(out.Answer, doc.fields(answer.Content[kind].Schema)...)
			}
			if len(answer.Content) == 0 {
				out.AnswerAbout = "without content"
			} else if len(out.Answer) == 0 {
				out.AnswerAbout = strings.Join(slices.Sorted(maps.Keys(answer.Content)), " or ")
			}
		default:
			out.Status += " or " + status
		}
	}
	out.Refusals = strings.Join(refusals, ", ")
	return out
}

func neededScope(scope string) string {
	switch scope {
	case "":
		return "no token needed"
	case "any":
		return "any"
	case "full":
		return "full"
	}
	return scope + " or more"
}

func rolesThatMay(roles []string) string {
	switch len(roles) {
	case 0:
		return "whoever asks"
	case 4:
		return "everybody in the lab"
	}
	words := make([]string, len(roles))
	for i, r := range roles {
		words[i] = r + "s"
	}
	return strings.Join(words, " and ")
}

func (doc *openAPI) resolve(s *openAPISchema) *openAPISchema {
	for s != nil && s.Ref != "" {
		s = doc.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
	}
	return s
}

// deepest is how many objects within objects are told of.
const deepest = 4

// fields are those of an object, what has to be sent first.
func (doc *openAPI) fields(s *openAPISchema) []apiField { return doc.fieldsWithin(s, "", 0) }

func (doc *openAPI) fieldsWithin(s *openAPISchema, prefix string, depth int) []apiField {
	s = doc.resolve(s)
	if s == nil || depth == deepest {
		return nil
	}
	names := slices.SortedFunc(maps.Keys(s.Properties), func(a, b string) int {
		if ra, rb := slices.Contains(s.Required, a), slices.Contains(s.Required, b); ra != rb && depth == 0 {
			if ra {
				return -1
			}
			return 1
		}
		return cmp.Compare(a, b)
	})
	var list []apiField
	for _, name := range names {
		property := s.Properties[name]
		field := doc.field(prefix+name, property)
		field.Required = slices.Contains(s.Required, name)
		list = append(list, field)
		within, end := doc.resolve(property), "."
		if within != nil && within.Type.main() == "array" {
			within, end = doc.resolve(within.Items), "[]."
		}
		if within != nil && len(within.Properties) > 0 {
			list = append(list, doc.fieldsWithin(within, prefix+name+end, depth+1)...)
		}
	}
	return list
}

func (doc *openAPI) field(name string, s *openAPISchema) apiField {
	field := apiField{Name: name}
	if s == nil {
		return field
	}
	field.About = s.Description
	if s = doc.resolve(s); s == nil {
		return field
	}
	field.Type = doc.typeWords(s)
	if field.About == "" {
		field.About = s.Description
	}
	field.About = sentences(field.About, limits(s))
	return field
}

func (doc *openAPI) typeWords(s *openAPISchema) string {
	s = doc.resolve(s)
	if s == nil {
		return ""
	}
	switch kind := s.Type.main(); {
	case s.Format == "date-time":
		return "time"
	case kind == "array":
		return "list of " + orElse(doc.typeWords(s.Items), "values")
	case kind == "":
		return "any"
	default:
		return kind
	}
}

// limits says what a value may be.
func limits(s *openAPISchema) string {
	var parts []string
	if len(s.Enum) > 0 {
		parts = append(parts, "One of "+listWords(s.Enum))
	}
	number := func(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.6g", v), ".0") }
	switch {
	case s.Minimum != nil && s.Maximum != nil:
		parts = append(parts, number(*s.Minimum)+" to "+number(*s.Maximum))
	case s.Maximum != nil:
		parts = append(parts, "At most "+number(*s.Maximum))
	case s.Minimum != nil && *s.Minimum != 0:
		parts = append(parts, "At least "+number(*s.Minimum))
	}
	if s.MaxLength != nil {
		parts = append(parts, fmt.Sprintf("At most %d characters", *s.MaxLength))
	}
	if s.Default != nil {
		parts = append(parts, "If left out: "+fmt.Sprint(s.Default))
	}
	return strings.Join(parts, ". ")
}

func listWords(list []any) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = fmt.Sprint(v)
	}
	return strings.Join(texts, ", ")
}

// sentences joins two that may be empty, and ends each.
func sentences(list ...string) string {
	var out []string
	for _, text := range list {
		if text = strings.TrimSpace(text); text != "" {
			out = append(out, strings.TrimSuffix(text, ".")+".")
		}
	}
	return strings.Join(out, " ")
}

// sample is a value for an example: of an object what has to be sent, or the first thing that may be.
func (doc *openAPI) sample(name string, s *openAPISchema) any {
	s = doc.resolve(s)
	switch {
	case s == nil:
		return nil
	case len(s.Examples) > 0:
		return s.Examples[0]
	case len(s.Enum) > 0:
		return s.Enum[0]
	case s.Default != nil:
		return s.Default
	case s.Format == "date-time":
		return "2030-01-31T12:00:00Z"
	}
	switch s.Type.main() {
	case "object":
		object := map[string]any{}
		for _, property := range s.Required {
			object[property] = doc.sample(property, s.Properties[property])
		}
		for _, property := range slices.Sorted(maps.Keys(s.Properties)) {
			if len(object) == 0 {
				object[property] = doc.sample(property, s.Properties[property])
			}
		}
		return object
	case "array":
		return []any{doc.sample(name, s.Items)}
	case "integer", "number":
		if s.Minimum != nil && *s.Minimum > 0 {
			return *s.Minimum
		}
		return 1
	case "boolean":
		return true
	}
	return strings.ToUpper(name) // as on command lines: what stands for something else
}

func compactJSON(value any) string {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return ""
	}
	return strings.TrimSpace(buffer.String())
}

// An apiView is the page about the HTTP API.
type apiView struct {
	apiReference
	Address string // of the lab
	First   string // a line to begin with
}

// apiPage is for everybody, as the OpenAPI document is: it holds nothing of the lab.
func (s *Server) apiPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	if s.api.Count == 0 {
		return errNoPage
	}
	view := apiView{apiReference: s.api, Address: s.address(r)}
	view.First = "export GPULAB_TOKEN=gpulab_…\ncurl -H \"Authorization: Bearer $GPULAB_TOKEN\" " + view.Address +
		"/api/v1/me"
	s.render(w, r, http.StatusOK, apiPage(s.page(w, r, v, "HTTP API", ""), view))
	return nil
}
