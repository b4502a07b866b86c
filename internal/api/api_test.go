package api_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/api"
	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/users"
)

// An answer is a response that was read.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends a request as a program with this token does; an empty token sends none.
func ask(t testing.TB, l *apitest.Lab, token, method, path, body string, edit ...func(*http.Request)) answer {
	t.Helper()
	request := httptest.NewRequest(method, "https://lab.example/api/v1"+path, strings.NewReader(body))
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	for _, e := range edit {
		e(request)
	}
	recorder := httptest.NewRecorder()
	l.API.ServeHTTP(recorder, request)
	text, err := io.ReadAll(recorder.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	checkDescribed(t, l, method, path, recorder.Code)
	return answer{recorder.Code, recorder.Header(), string(text)}
}

// checkDescribed: whatever is answered, the description of the operation says that it may be.
func checkDescribed(t testing.TB, l *apitest.Lab, method, path string, status int) {
	t.Helper()
	path, _, _ = strings.Cut(path, "?")
	described := descriptions(l)
	for _, o := range l.API.Operations() {
		if o.Method == method && operationPattern(o.Path).MatchString(path) {
			if _, ok := described.Paths[o.Path][strings.ToLower(method)].Responses[strconv.Itoa(status)]; !ok {
				t.Errorf("%s answers %d, which its description does not say", o.ID, status)
			}
			return
		}
	}
}

var pathVariable = regexp.MustCompile(`\{[a-z]+\}`)

func operationPattern(path string) *regexp.Regexp {
	return regexp.MustCompile("^" + pathVariable.ReplaceAllString(path, `[^/]+`) + "$")
}

// A description is what the tests read of the OpenAPI document.
type description struct {
	OpenAPI string
	Paths   map[string]map[string]described
	Servers []struct{ URL string }
}

type described struct {
	OperationID string              `json:"operationId"`
	Security    []map[string][]any  `json:"security"`
	Summary     string              `json:"summary"`
	Responses   map[string]struct{} `json:"responses"`
	Scope       string              `json:"x-gpulab-scope"`
	Roles       []string            `json:"x-gpulab-roles"`
}

var (
	descriptionOnce sync.Once
	theDescription  description
)

// descriptions is the same for every lab.
func descriptions(l *apitest.Lab) description {
	descriptionOnce.Do(func() {
		recorder := httptest.NewRecorder()
		l.API.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, api.Prefix+"/openapi.json", nil))
		if err := json.Unmarshal(recorder.Body.Bytes(), &theDescription); err != nil {
			panic(err)
		}
	})
	return theDescription
}

// want checks a status and what the answer says. What is refused is problem details with a next step.
func (a answer) want(t testing.TB, status int, texts ...string) answer {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d: %s", a.status, status, a.body)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			t.Errorf("the answer does not say %q:\n%s", text, a.body)
		}
	}
	if a.status >= 400 {
		var p struct {
			Status        int
			Title, Detail string
		}
		if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Status != a.status || p.Title == "" || p.Detail == "" || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("no problem details (%v, %s): %s", err, a.header.Get("Content-Type"), a.body)
		}
	}
	return a
}

func read[T any](t testing.TB, a answer) T {
	t.Helper()
	var value T
	if err := json.Unmarshal([]byte(a.body), &value); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return value
}

// roles are the people who ask, and who each is.
const (
	nobody = 1 << iota
	guest
	member
	lead
	admin
	everyone = nobody | guest | member | lead | admin
	signedIn = everyone &^ nobody
	managers = lead | admin
)

var askers = []struct {
	bit    int
	handle string
}{{nobody, ""}, {guest, "gus"}, {member, "ben"}, {lead, "lea"}, {admin, "ada"}}

// sshKey is somebody's public key.
const sshKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAyY9NOoi6ZOoLSEvCTLgf0HqcNGA744m/TX4l5InxH8 somebody@laptop"

// operations are every operation with a request that is right but for who sends it: HANDLE is whoever asks. The table is
// written out by hand: an operation that lost its check fails here.
var operations = map[string]struct {
	path, body string
	allowed    int
	// scope is the smallest with which it may be done; "" is any.
	scope users.TokenScope
}{
	"getLab":                    {"/lab", "", everyone, ""},
	"getStatus":                 {"/status", "", admin, ""},
	"askDevice":                 {"/device", `{"client": "laptop", "scope": "read", "days": 7}`, everyone, ""},
	"getDeviceToken":            {"/device/token", `{"deviceCode": "x"}`, everyone, ""},
	"createToken":               {"/tokens", `{"handle": "ann", "password": "ann has a long password", "name": "x", "scope": "read"}`, everyone, ""},
	"getMe":                     {"/me", "", signedIn, ""},
	"changeMe":                  {"/me", `{"name": "Another"}`, signedIn, users.ScopeFull},
	"changePassword":            {"/me/password", `{"old": "HANDLE has a long password", "new": "quite another long one"}`, signedIn, users.ScopeFull},
	"listMyQuotas":              {"/me/quotas", "", signedIn, ""},
	"listMyUse":                 {"/me/use", "", signedIn, ""},
	"listMyTokens":              {"/me/tokens", "", signedIn, ""},
	"revokeMyToken":             {"/me/tokens/999", "", signedIn, users.ScopeFull},
	"revokeThisToken":           {"/me/token", "", signedIn, ""},
	"listMySessions":            {"/me/sessions", "", signedIn, ""},
	"endMySession":              {"/me/sessions/x", "", signedIn, users.ScopeFull},
	"endMySessions":             {"/me/sessions", "", signedIn, users.ScopeFull},
	"getFiles":                  {"/files", "", signedIn, ""},
	"listMySSHKeys":             {"/me/ssh-keys", "", signedIn, ""},
	"addMySSHKey":               {"/me/ssh-keys", `{"key": "` + sshKey + `"}`, signedIn, users.ScopeFull},
	"removeMySSHKey":            {"/me/ssh-keys/999", "", signedIn, users.ScopeFull},
	"listMyFileConnections":     {"/files/connections", "", signedIn, ""},
	"closeMyFileConnections":    {"/files/connections", "", signedIn, users.ScopeFull},
	"listFolders":               {"/folders", "", signedIn, ""},
	"createFolder":              {"/folders", `{"name": "not a name", "kind": "group", "groups": ["` + apitest.Group + `"]}`, managers, users.ScopeFull},
	"getFolder":                 {"/folders/" + apitest.Folder, "", managers, ""},
	"changeFolder":              {"/folders/" + apitest.Folder, `{"note": "for the seminar"}`, managers, users.ScopeFull},
	"deleteFolder":              {"/folders/" + apitest.Folder, "", managers, users.ScopeFull},
	"undeleteFolder":            {"/folders/" + apitest.Folder + "/undelete", "", managers, users.ScopeFull},
	"getMyHome":                 {"/me/home", "", signedIn, ""},
	"clearMyHome":               {"/me/home/files?path=nothing", "", signedIn, users.ScopeFull},
	"getUserHome":               {"/users/zed/home", "", managers, ""},
	"listMyIdentities":          {"/me/identities", "", signedIn, ""},
	"unlinkMyIdentity":          {"/me/identities/999/unlink", `{"password": "quite another long one"}`, signedIn, users.ScopeFull}, // since changePassword
	"listUserIdentities":        {"/users/zed/identities", "", managers, ""},
	"unlinkUserIdentity":        {"/users/zed/identities/999", "", admin, users.ScopeFull},
	"roleByRules":               {"/users/gus/role-by-rules", "", admin, users.ScopeFull},
	"listProfiles":              {"/profiles", "", signedIn, ""},
	"listNotebooks":             {"/notebooks", "", signedIn, ""},
	"launchNotebook":            {"/notebooks", `{"profile": "cpu"}`, signedIn, users.ScopeLaunch},
	"getNotebook":               {"/notebooks/1", "", managers, ""},
	"stopNotebook":              {"/notebooks/1", "", managers, users.ScopeFull},
	"keepNotebook":              {"/notebooks/1/keep", "", managers, users.ScopeFull},
	"freeNotebook":              {"/notebooks/1/free", "", admin, users.ScopeFull},
	"listReclaims":              {"/reclaims", "", signedIn, ""},
	"listJobs":                  {"/jobs", "", signedIn, ""},
	"submitJob":                 {"/jobs", `{"command": ["true"]}`, signedIn, users.ScopeLaunch},
	"getJob":                    {"/jobs/2", "", managers, ""},
	"readJobLog":                {"/jobs/2/log", "", 0, ""},
	"runJobAgain":               {"/jobs/2/again", "", 0, users.ScopeLaunch},
	"listJobTasks":              {"/jobs/2/tasks", "", managers, ""},
	"cancelJobTask":             {"/jobs/2/tasks/3", "", managers, users.ScopeFull},
	"cancelJob":                 {"/jobs/2", "", managers, users.ScopeFull},
	"listServices":              {"/services", "", signedIn, ""},
	"startService":              {"/services", `{"command": ["true"], "port": 7860}`, signedIn, users.ScopeLaunch},
	"getService":                {"/services/3", "", managers, ""},
	"readServiceLog":            {"/services/3/log", "", 0, ""},
	"shareService":              {"/services/3/share", `{"share": "lab"}`, 0, users.ScopeLaunch},
	"keepService":               {"/services/3/keep", `{"stopAfter": "1d"}`, 0, users.ScopeLaunch},
	"restartService":            {"/services/3/restart", "", 0, users.ScopeLaunch},
	"startServiceAgain":         {"/services/3/again", "", 0, users.ScopeLaunch},
	"stopService":               {"/services/3", "", managers, users.ScopeFull},
	"getReport":                 {"/report", "", admin, ""},
	"listGPUs":                  {"/gpus", "", signedIn, ""},
	"getGPUHistory":             {"/gpus/" + apitest.GPU + "/history", "", signedIn, ""},
	"listGPUEvents":             {"/gpus/" + apitest.GPU + "/events", "", signedIn, ""},
	"lendGPU":                   {"/gpus/" + apitest.GPU + "/lending", `{"anyway": true}`, admin, users.ScopeFull},
	"listMachines":              {"/machines", "", admin, ""},
	"inviteMachine":             {"/machine-invitations", "", admin, users.ScopeFull},
	"withdrawMachineInvitation": {"/machine-invitations/0000000000000001", "", admin, users.ScopeFull},
	"acceptMachine":             {"/machine-requests/012345/accept", "", admin, users.ScopeFull},
	"refuseMachine":             {"/machine-requests/012345/refuse", "", admin, users.ScopeFull},
	"cordonMachine":             {"/machines/gpu-two/cordon", `{"reason": "new disk"}`, admin, users.ScopeFull},
	"uncordonMachine":           {"/machines/gpu-two/cordon", "", admin, users.ScopeFull},
	"drainMachine":              {"/machines/gpu-two/drain", `{"seconds": 3600}`, admin, users.ScopeFull},
	"keepMachine":               {"/machines/gpu-two/drain", "", admin, users.ScopeFull},
	"renameMachine":             {"/machines/gpu-two/title", `{"title": "By the door"}`, admin, users.ScopeFull},
	"placeNotebooks":            {"/placing", `{"cpu": "prefer"}`, admin, users.ScopeFull},
	"limitMachine":              {"/machines/gpu-two/limit", `{"for": ["role:member"]}`, admin, users.ScopeFull},
	"unlimitMachine":            {"/machines/gpu-two/limit", "", admin, users.ScopeFull},
	"getMyMail":                 {"/me/mail", "", signedIn, ""},
	"changeMyMail":              {"/me/mail", `{"wanted": {}}`, signedIn, users.ScopeFull},
	"getMail":                   {"/mail", "", admin, ""},
	"testMail":                  {"/mail/test", `{"address": "ada@lab.example"}`, admin, users.ScopeFull},
	"getTailnet":                {"/tailnet", "", admin, ""},
	"turnTailnetOn":             {"/tailnet/up", `{"authKey": "tskey-auth-x"}`, admin, users.ScopeFull},
	"turnTailnetOff":            {"/tailnet/down", "", admin, users.ScopeFull},
	"closeFunnel":               {"/tailnet/funnel", "", admin, users.ScopeFull},
	"leaveTailnet":              {"/tailnet", "", admin, users.ScopeFull},
	"removeMachine":             {"/machines/gpu-two", "", admin, users.ScopeFull},
	"checkGPU":                  {"/gpu-check", "", admin, users.ScopeFull},
	"listEnvironments":          {"/environments", "", signedIn, ""},
	"createEnvironment":         {"/environments", `{"name": "not a name", "requirements": "numpy"}`, admin, users.ScopeFull},
	"getEnvironment":            {"/environments/small/1", "", signedIn, ""},
	"removeEnvironment":         {"/environments/none/1", "", admin, users.ScopeFull},
	"getEnvironmentLock":        {"/environments/small/1/lock", "", signedIn, ""},
	"exportEnvironment":         {"/environments/none/1/file", "", admin, ""},
	"importEnvironment":         {"/environment-files", "no environment", admin, users.ScopeFull},
	"listEnvironmentOffers":     {"/environment-catalogue", "", signedIn, ""},
	"getEnvironmentBuild":       {"/environment-build", "", signedIn, ""},
	"cancelEnvironmentBuild":    {"/environment-build", "", admin, users.ScopeFull},
	"setDefaultEnvironment":     {"/environment-default", `{"environment": ""}`, admin, users.ScopeFull},
	"listUse":                   {"/use?by=user", "", signedIn, ""},
	"listUsers":                 {"/users", "", admin, ""},
	"createUser":                {"/users", `{"handle": "new-one"}`, admin, users.ScopeFull},
	"getUser":                   {"/users/zed", "", managers, ""},
	"changeUser":                {"/users/gus", `{"name": "Gustav"}`, admin, users.ScopeFull},
	"removeUser":                {"/users/gus", "", admin, users.ScopeFull},
	"undeleteUser":              {"/users/gus/undelete", "", admin, users.ScopeFull},
	"suspendUser":               {"/users/gus/suspend", "", admin, users.ScopeFull},
	"resumeUser":                {"/users/gus/resume", "", admin, users.ScopeFull},
	"createPasswordLink":        {"/users/ben/link", "", admin, users.ScopeFull},
	"listUserQuotas":            {"/users/zed/quotas", "", managers, ""},
	"listUserUse":               {"/users/zed/use", "", managers, ""},
	"listGroups":                {"/groups", "", managers, ""},
	"createGroup":               {"/groups", `{"name": "seminar"}`, admin, users.ScopeFull},
	"getGroup":                  {"/groups/" + apitest.Group, "", managers, ""},
	"removeGroup":               {"/groups/none", "", admin, users.ScopeFull},
	"setMember":                 {"/groups/" + apitest.Group + "/members/ben", `{}`, admin, users.ScopeFull},
	"removeMember":              {"/groups/" + apitest.Group + "/members/ben", "", admin, users.ScopeFull},
	"listInvitations":           {"/invitations", "", managers, ""},
	"invite":                    {"/invitations", `{"group": "` + apitest.Group + `"}`, managers, users.ScopeFull},
	"revokeInvitation":          {"/invitations/999", "", managers, users.ScopeFull},
	"listSignUps":               {"/sign-ups", "", admin, ""},
	"approveSignUp":             {"/sign-ups/1/approve", `{}`, admin, users.ScopeFull},
	"declineSignUp":             {"/sign-ups/1/decline", "", admin, users.ScopeFull},
	"importUsers":               {"/imports", `{"list": "name\nSomebody New\n", "dryRun": true}`, admin, users.ScopeFull},
	"listQuotas":                {"/quotas", "", admin, ""},
	"setQuota":                  {"/quotas", `{"subject": "role:guest", "kind": "gpus", "value": 1}`, admin, users.ScopeFull},
	"unsetQuota":                {"/quotas?subject=role:guest&kind=gpus", "", admin, users.ScopeFull},
	"listGrants":                {"/grants", "", admin, ""},
	"grant":                     {"/grants", `{"user": "ben", "kind": "gpus", "extra": 1, "ends": "2099-01-01T00:00:00Z"}`, admin, users.ScopeFull},
	"endGrant":                  {"/grants/999", "", admin, users.ScopeFull},
	"listAudit":                 {"/audit", "", admin, ""},
	"exportAudit":               {"/audit/export", `{"format": "csv"}`, admin, users.ScopeFull},
}

// TestEveryOperationForEveryRoleAndScope walks all operations as nobody and with a token of each scope and role: reading
// changes nothing, launching reaches the owner's own notebooks, full what the role does.
func TestEveryOperationForEveryRoleAndScope(t *testing.T) {
	reach := map[users.TokenScope]int{"": 0, users.ScopeRead: 1, users.ScopeLaunch: 2, users.ScopeFull: 3}
	for _, asker := range askers {
		scopes := users.TokenScopes()
		if asker.bit == nobody {
			scopes = scopes[:1]
		}
		for _, scope := range scopes {
			t.Run(asker.handle+" "+string(scope), func(t *testing.T) {
				l := apitest.New(t)
				zed, err := l.Users.ByHandle(t.Context(), "zed")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := l.Notebooks.Launch(t.Context(), zed, notebooks.Request{Profile: "cpu", Title: "zed's own"}); err != nil {
					t.Fatal(err)
				}
				if _, err := l.Notebooks.Submit(t.Context(), zed, notebooks.JobRequest{Program: notebooks.Program{Script: "true"}, Name: "zed's own", Array: "0-9"}); err != nil {
					t.Fatal(err)
				}
				if _, err := l.Notebooks.Serve(t.Context(), zed, notebooks.ServiceRequest{JobRequest: notebooks.JobRequest{Program: notebooks.Program{Script: "true"}, Name: "zed's page"}, Port: 6006}); err != nil {
					t.Fatal(err)
				}
				for _, o := range l.API.Operations() {
					row, listed := operations[o.ID]
					if !listed {
						t.Errorf("%s is not in the table", o.ID)
						continue
					}
					token := ""
					if asker.bit != nobody {
						if _, err := l.DB.ExecContext(t.Context(), "DELETE FROM api_tokens"); err != nil {
							t.Fatal(err)
						}
						token = l.Token(t, asker.handle, scope)
					}
					got := ask(t, l, token, o.Method, row.path, strings.ReplaceAll(row.body, "HANDLE", asker.handle))
					refused := got.status == http.StatusUnauthorized || got.status == http.StatusForbidden || got.status == http.StatusNotFound && (strings.HasPrefix(row.path, "/notebooks/") || strings.HasPrefix(row.path, "/jobs/") || strings.HasPrefix(row.path, "/services/"))
					allowed := row.allowed&asker.bit != 0 && (row.allowed&nobody != 0 || reach[scope] >= reach[row.scope])
					if scope == users.ScopeFiles && asker.bit != nobody { // for files and nothing else
						allowed = row.allowed&nobody != 0 || o.ID == "getFiles" || o.ID == "revokeThisToken"
					}
					if allowed == refused || got.status >= 500 {
						t.Errorf("%s %s: status %d, want allowed %v: %s", o.Method, row.path, got.status, allowed, got.body)
					}
					if refused && strings.Contains(got.body, "zed's own") {
						t.Errorf("%s tells what it refuses: %s", o.ID, got.body)
					}
					if got.header.Get("Set-Cookie") != "" || got.header.Get("Cache-Control") != "no-store" && got.status != 0 {
						t.Errorf("%s: headers %v", o.ID, got.header)
					}
					if asker.bit == nobody && row.allowed&nobody == 0 && got.header.Get("Www-Authenticate") != `Bearer realm="gpulab"` {
						t.Errorf("%s without a token: %v", o.ID, got.header)
					}
				}
			})
		}
	}
}

// TestDescription: the description lists every operation, with its security.
func TestDescription(t *testing.T) {
	l := apitest.New(t)
	got := ask(t, l, "", "GET", "/openapi.json", "").want(t, http.StatusOK)
	doc := read[description](t, got)
	if !strings.HasPrefix(doc.OpenAPI, "3.1") || len(doc.Servers) != 1 || doc.Servers[0].URL != api.Prefix {
		t.Errorf("%s, %v", doc.OpenAPI, doc.Servers)
	}
	for _, o := range l.API.Operations() {
		d := doc.Paths[o.Path][strings.ToLower(o.Method)]
		if d.OperationID != o.ID || d.Summary == "" {
			t.Errorf("%s %s is described as %+v", o.Method, o.Path, d)
		}
		public := operations[o.ID].allowed&nobody != 0
		if scope := string(operations[o.ID].scope); !public && d.Scope != "any" && scope != "" && d.Scope != scope && o.ID != "stopNotebook" && o.ID != "keepNotebook" && o.ID != "cancelJob" && o.ID != "cancelJobTask" && o.ID != "stopService" { // launch stops one's own
			t.Errorf("%s: scope %q, want %q", o.ID, d.Scope, scope)
		}
		if !public {
			for _, a := range askers[1:] {
				role := map[int]string{guest: "guest", member: "member", lead: "lead", admin: "admin"}[a.bit]
				// Some ask for what nobody but managers see; all may ask.
				if operations[o.ID].allowed&a.bit != 0 && !slices.Contains(d.Roles, role) {
					t.Errorf("%s: roles %v lack %s", o.ID, d.Roles, role)
				}
			}
		}
		if _, refuses := d.Responses["401"]; public != (len(d.Security) == 0) || public == refuses {
			t.Errorf("%s: security %v, responses %v", o.ID, d.Security, d.Responses)
		}
	}
	if yaml := ask(t, l, "", "GET", "/openapi.yaml", ""); yaml.status != http.StatusOK || !strings.Contains(yaml.body, "operationId: getMe") {
		t.Errorf("as YAML: %d %.200s", yaml.status, yaml.body)
	}
	if strings.Contains(got.body, "unpkg") || ask(t, l, "", "GET", "/docs", "").status != http.StatusNotFound {
		t.Error("there is a page with scripts from elsewhere")
	}
}

// TestRefusals: what does not fit is said with the right status and the next step, and changes nothing.
func TestRefusals(t *testing.T) {
	l := apitest.New(t)
	ada := l.Token(t, "ada", users.ScopeFull)
	ask(t, l, ada, "GET", "/nothing", "").want(t, http.StatusNotFound, "openapi.json")
	if got := ask(t, l, ada, "PUT", "/me", `{}`).want(t, http.StatusMethodNotAllowed); got.header.Get("Allow") != "GET, PATCH" {
		t.Errorf("Allow: %q", got.header.Get("Allow"))
	}
	ask(t, l, ada, "POST", "/users", `{"handle": "x1", "admin": true}`).want(t, http.StatusUnprocessableEntity, "admin")
	ask(t, l, ada, "POST", "/users", `{"handle": "x1", "role": "god"}`).want(t, http.StatusUnprocessableEntity, "role")
	ask(t, l, ada, "POST", "/users", `{"handle": "x1"`).want(t, http.StatusBadRequest)
	ask(t, l, ada, "POST", "/users", ``).want(t, http.StatusBadRequest)
	ask(t, l, ada, "POST", "/users", `{"handle": "ben"}`).want(t, http.StatusConflict, "taken")
	ask(t, l, ada, "POST", "/users", `{"handle": "Ben!"}`).want(t, http.StatusUnprocessableEntity)
	ask(t, l, ada, "POST", "/users", `{"name": "`+strings.Repeat("x", 100<<10)+`"}`).want(t, http.StatusRequestEntityTooLarge)
	ask(t, l, ada, "POST", "/users", `handle=x1`, func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") }).want(t, http.StatusUnsupportedMediaType)
	ask(t, l, ada, "GET", "/users?role=admin&rolle=guest", "").want(t, http.StatusUnprocessableEntity, "rolle")
	ask(t, l, ada, "GET", "/users?role=", "").want(t, http.StatusUnprocessableEntity, "no value")
	ask(t, l, ada, "PATCH", "/users/ben", `{"name": null}`).want(t, http.StatusBadRequest, "null")
	ask(t, l, ada, "GET", "/users?page=0", "").want(t, http.StatusUnprocessableEntity)
	ask(t, l, ada, "GET", "/users/nobody", "").want(t, http.StatusNotFound)
	ask(t, l, ada, "POST", "/users/ada/suspend", "").want(t, http.StatusConflict, "yourself")
	ask(t, l, ada, "DELETE", "/users/ada", "").want(t, http.StatusConflict)
	ask(t, l, ada, "PATCH", "/users/ada", `{"role": "guest"}`).want(t, http.StatusConflict)
	ask(t, l, ada, "POST", "/notebooks", `{"profile": "none"}`).want(t, http.StatusUnprocessableEntity)
	ask(t, l, ada, "GET", "/notebooks/x", "").want(t, http.StatusUnprocessableEntity)
	ask(t, l, l.Token(t, "lea", users.ScopeFull), "GET", "/users/ben", "").want(t, http.StatusForbidden)
	ask(t, l, l.Token(t, "lea", users.ScopeFull), "GET", "/users/nobody", "").want(t, http.StatusForbidden)
	secret := "my secret sentence 17"
	for _, body := range []string{`{"handle": "ada", "password": "` + secret + `", "name": "x", "scope": "all"}`, `{"handle": "ada", "password": ["` + secret + `"], "name": "x", "scope": "read"}`} {
		if got := ask(t, l, "", "POST", "/tokens", body).want(t, http.StatusUnprocessableEntity); strings.Contains(got.body, secret) {
			t.Errorf("a password comes back: %s", got.body)
		}
	}
	l.Broken = true
	if got := ask(t, l, ada, "GET", "/status", "").want(t, http.StatusInternalServerError, "gpulab logs"); strings.Contains(got.body, "cannot be read") {
		t.Errorf("an error of ours is shown: %s", got.body)
	}
	found := read[struct{ Total int }](t, ask(t, l, ada, "GET", "/users?q=x1", "").want(t, http.StatusOK))
	if found.Total != 0 {
		t.Error("a refused request added somebody")
	}
}

// TestRefusedTokens: only a token that counts is one, in the header, once.
func TestRefusedTokens(t *testing.T) {
	l := apitest.New(t)
	ada := l.Token(t, "ada", users.ScopeFull)
	who, err := l.Users.ByHandle(t.Context(), "ada")
	if err != nil {
		t.Fatal(err)
	}
	session, err := l.Users.StartSession(t.Context(), who.ID, users.SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	withCookie := func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookies.Session, Value: session}) }
	ask(t, l, "", "GET", "/me", "", withCookie).want(t, http.StatusUnauthorized)
	ask(t, l, "", "POST", "/notebooks", `{"profile": "cpu"}`, withCookie).want(t, http.StatusUnauthorized)
	ask(t, l, "gpulab_wrong", "GET", "/me", "", withCookie).want(t, http.StatusUnauthorized)
	ask(t, l, session, "GET", "/me", "").want(t, http.StatusUnauthorized)
	ask(t, l, "", "GET", "/me?access_token="+ada, "").want(t, http.StatusUnauthorized)
	ask(t, l, "", "GET", "/me", "", func(r *http.Request) { r.SetBasicAuth("ada", apitest.Password("ada")) }).want(t, http.StatusUnauthorized)
	ask(t, l, "", "GET", "/me", "", func(r *http.Request) { r.Header["Authorization"] = []string{"Bearer " + ada, "Bearer " + ada} }).want(t, http.StatusUnauthorized)
	for what, end := range map[string]func(id int64) error{
		"suspended": func(id int64) error { return l.Users.Suspend(t.Context(), id) },
		"removed":   func(id int64) error { return l.Users.Remove(t.Context(), id) },
		"revoked":   func(id int64) error { _, err := l.Users.RevokeTokens(t.Context(), id); return err },
		"expired": func(id int64) error {
			_, err := l.DB.ExecContext(t.Context(), "UPDATE api_tokens SET expires_at = 1 WHERE user_id = ?", id)
			return err
		},
	} {
		u, err := l.Users.Create(t.Context(), users.NewUser{Handle: "t-" + what})
		if err != nil {
			t.Fatal(err)
		}
		token := l.Token(t, u.Handle, users.ScopeFull)
		ask(t, l, token, "GET", "/me", "").want(t, http.StatusOK, u.Handle)
		if err := end(u.ID); err != nil {
			t.Fatal(err)
		}
		got := ask(t, l, token, "GET", "/me", "").want(t, http.StatusUnauthorized)
		if got.header.Get("Www-Authenticate") != `Bearer realm="gpulab", error="invalid_token"` {
			t.Errorf("%s: %v", what, got.header)
		}
	}
	for tries := 0; ; tries++ {
		got := ask(t, l, "gpulab_guessed", "GET", "/me", "")
		if got.status == http.StatusTooManyRequests {
			if got.header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			break
		}
		if tries > 200 {
			t.Fatal("wrong tokens are not limited")
		}
	}
	ask(t, l, ada, "GET", "/me", "").want(t, http.StatusOK) // somebody else's guesses cost nobody their own
}

func TestRateLimit(t *testing.T) {
	l := apitest.NewWithLimits(t, api.Limits{PerSecond: 0.01, Burst: 3})
	ben, gus := l.Token(t, "ben", users.ScopeRead), l.Token(t, "gus", users.ScopeRead)
	for range 3 {
		ask(t, l, ben, "GET", "/me", "").want(t, http.StatusOK)
	}
	got := ask(t, l, ben, "GET", "/me", "").want(t, http.StatusTooManyRequests)
	if seconds, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || seconds < 1 {
		t.Errorf("Retry-After: %q", got.header.Get("Retry-After"))
	}
	ask(t, l, gus, "GET", "/me", "").want(t, http.StatusOK)
	for range 15 { // an address five times as often
		ask(t, l, "", "GET", "/lab", "").want(t, http.StatusOK)
	}
	ask(t, l, "", "GET", "/lab", "").want(t, http.StatusTooManyRequests)
	ask(t, l, "", "GET", "/me", "").want(t, http.StatusTooManyRequests)
	ask(t, l, gus, "GET", "/me", "").want(t, http.StatusOK)
}

var nextLink = regexp.MustCompile(`<([^>]+)>; rel="next"`)

// TestPaging: the links of lists lead through all of them, once each.
func TestPaging(t *testing.T) {
	l := apitest.New(t)
	ada := l.Token(t, "ada", users.ScopeFull)
	for i := range 115 {
		ask(t, l, ada, "POST", "/users", `{"handle": "p-`+strconv.Itoa(i)+`", "noLink": true}`).want(t, http.StatusCreated)
	}
	type page struct {
		Total   int
		Users   []struct{ Handle string }
		Entries []struct{ ID int64 }
	}
	for start, want := range map[string]int{"/users?q=p-&perPage=50": 115, "/audit?action=user.add&limit=40": 115} {
		seen, requests := map[string]bool{}, 0
		for path := start; path != ""; requests++ {
			got := ask(t, l, ada, "GET", path, "").want(t, http.StatusOK)
			list := read[page](t, got)
			for _, u := range list.Users {
				seen[u.Handle] = true
			}
			for _, e := range list.Entries {
				seen[strconv.FormatInt(e.ID, 10)] = true
			}
			path = ""
			if next := nextLink.FindStringSubmatch(got.header.Get("Link")); next != nil {
				path = strings.TrimPrefix(next[1], api.Prefix)
			}
		}
		if len(seen) != want || requests != 3 {
			t.Errorf("%s: %d of %d in %d requests", start, len(seen), want, requests)
		}
	}
}

func TestAuditExport(t *testing.T) {
	l := apitest.New(t)
	ada := l.Token(t, "ada", users.ScopeFull)
	ask(t, l, ada, "POST", "/groups", `{"name": "seminar"}`).want(t, http.StatusCreated)
	got := ask(t, l, ada, "POST", "/audit/export", `{"format": "json"}`).want(t, http.StatusOK, "group.add", "audit.export")
	if check, err := audit.CheckExport(strings.NewReader(got.body), nil); err != nil || check.Entries < 2 {
		t.Errorf("%+v, %v", check, err)
	}
	csv := ask(t, l, ada, "POST", "/audit/export", `{"format": "csv", "action": "group.add"}`).want(t, http.StatusOK, "seminar")
	if !strings.HasPrefix(csv.header.Get("Content-Type"), "text/csv") || strings.Contains(csv.body, "audit.export") {
		t.Errorf("%v\n%s", csv.header, csv.body)
	}
}

// TestNotebooks: from the launch to the stop, with a question that waits for a change, and what others see of it.
func TestNotebooks(t *testing.T) {
	l := apitest.New(t)
	ben, gus, lea, ada := l.Token(t, "ben", users.ScopeLaunch), l.Token(t, "gus", users.ScopeLaunch), l.Token(t, "lea", users.ScopeFull), l.Token(t, "ada", users.ScopeFull)
	type notebook struct {
		ID                                     int64
		User, Title, State, URL, Page, Version string
		Position                               int
	}
	made := ask(t, l, ben, "POST", "/notebooks", `{"profile": "gpu", "title": "secret-plan"}`).want(t, http.StatusCreated)
	n := read[notebook](t, made)
	if made.header.Get("Location") != "/api/v1/notebooks/1" || n.State != "waiting" || n.URL != "" || n.Page != "https://lab.example/launches/1" || n.Position != 1 {
		t.Errorf("%+v, %v", n, made.header)
	}
	for token, sees := range map[string]bool{gus: false, lea: false, ada: true} {
		if got := ask(t, l, token, "GET", "/notebooks?of=everybody", "").want(t, http.StatusOK, `"user":"ben"`); strings.Contains(got.body, "secret-plan") != sees {
			t.Errorf("sees the title: %v, want %v", !sees, sees)
		}
	}
	ask(t, l, gus, "DELETE", "/notebooks/1", "").want(t, http.StatusNotFound)
	ask(t, l, gus, "POST", "/notebooks", `{"profile": "cpu", "instead": 1}`).want(t, http.StatusNotFound)
	ask(t, l, l.Token(t, "ada", users.ScopeLaunch), "DELETE", "/notebooks/1", "").want(t, http.StatusNotFound) // launch is for one's own
	began := time.Now()
	go func() {
		time.Sleep(100 * time.Millisecond)
		l.Notebooks.Move(1, func(n *notebooks.Launch) { n.State, n.Ready = notebooks.Running, time.Now() })
	}()
	now := read[notebook](t, ask(t, l, ben, "GET", "/notebooks/1?wait=20&seen="+url.QueryEscape(n.Version), "").want(t, http.StatusOK))
	if took := time.Since(began); now.State != "running" || now.URL != "https://lab.example:21002/user/ben/gpu/lab" || took < 100*time.Millisecond || took > 5*time.Second {
		t.Errorf("%+v after %s", now, took)
	}
	if at := read[notebook](t, ask(t, l, ada, "GET", "/notebooks/1", "")); at.URL != "" || at.Title != "secret-plan" {
		t.Errorf("an admin is led into somebody else's notebook: %+v", at)
	}
	began = time.Now()
	ask(t, l, ben, "GET", "/notebooks/1?wait=1&seen="+now.Version, "").want(t, http.StatusOK, now.Version)
	if took := time.Since(began); took < time.Second {
		t.Errorf("waited %s for a change that did not come", took)
	}
	ask(t, l, ben, "DELETE", "/notebooks/1", "").want(t, http.StatusOK, `"state":"ended"`)
	ask(t, l, ben, "DELETE", "/notebooks/1", "").want(t, http.StatusOK)
	log := ask(t, l, ada, "GET", "/audit?person=ben", "").want(t, http.StatusOK, "notebook.launch", "notebook.stop", "launch 1, profile gpu")
	if strings.Contains(log.body, "secret-plan") {
		t.Error("the log holds a title")
	}
}

// TestJobs: a job is submitted, followed, run again and cancelled by its owner; others see that there is one.
func TestJobs(t *testing.T) {
	l := apitest.New(t)
	ben, gus, ada := l.Token(t, "ben", users.ScopeLaunch), l.Token(t, "gus", users.ScopeFull), l.Token(t, "ada", users.ScopeFull)
	type job struct {
		ID                           int64
		Name, State, Version, Output string
		ExitCode                     *int
	}
	for body, why := range map[string]string{
		`{}`: "nothing to run", `{"script": "x", "command": ["y"]}`: "not both", `{"script": "x", "timeLimit": "soon"}`: "is not a time limit. Write 2h",
		`{"script": 7}`: "body.script", `{"command": ["x"], "memory": "lots"}`: "is not an amount of memory", `{"command": ["x"], "mail": "SOON"}`: "The types of mail are BEGIN, END",
		`{"script": "x", "after": "afternotok:1"}`: "A job cannot wait for afternotok:1.",
	} {
		ask(t, l, ben, "POST", "/jobs", body).want(t, http.StatusUnprocessableEntity, why)
	}
	defer func() {
		ask(t, l, ben, "POST", "/jobs", `{"script": "#SBATCH --partition=gpu\nsrun x", "cpus": 2, "memory": "16G", "errors": "x.err", "mail": "END,FAIL"}`).want(t, http.StatusCreated,
			`"notes":["gpulab ignores these options: --partition=gpu."]`, `"errors":"x.err"`, `"mail":["END","FAIL"]`)
		if got := ask(t, l, ada, "GET", "/jobs?of=everybody", ""); strings.Contains(got.body, "--partition") {
			t.Errorf("an admin reads what is in a script: %s", got.body)
		}
	}()
	made := ask(t, l, ben, "POST", "/jobs", `{"command": ["python", "x.py"], "name": "secret-plan", "gpus": 1, "timeLimit": "2h"}`).want(t, http.StatusCreated, `"timeLimit":7200`, `"page":"https://lab.example/jobs/1"`)
	j := read[job](t, made)
	if made.header.Get("Location") != "/api/v1/jobs/1" || j.State != "waiting" {
		t.Errorf("%+v, %v", j, made.header)
	}
	for token, sees := range map[string]bool{gus: false, ada: true} {
		if got := ask(t, l, token, "GET", "/jobs?of=everybody", "").want(t, http.StatusOK, `"user":"ben"`); strings.Contains(got.body, "secret-plan") != sees {
			t.Errorf("sees the name: %v, want %v", !sees, sees)
		}
	}
	// It is no notebook, and a notebook no job.
	ask(t, l, ben, "GET", "/notebooks/1", "").want(t, http.StatusNotFound)
	if got := ask(t, l, ada, "GET", "/notebooks?of=everybody", ""); strings.Contains(got.body, "secret-plan") {
		t.Errorf("listed as a notebook: %s", got.body)
	}
	ask(t, l, ben, "POST", "/notebooks", `{"profile": "cpu"}`).want(t, http.StatusCreated)
	ask(t, l, ben, "GET", "/jobs/2", "").want(t, http.StatusNotFound, "There is no such job")

	ask(t, l, ben, "GET", "/jobs/1/log", "").want(t, http.StatusOK, `"missing":true`)
	go func() {
		time.Sleep(100 * time.Millisecond)
		l.Notebooks.Say("h\xffi")
		l.Notebooks.Move(1, func(n *notebooks.Launch) { n.State = notebooks.Running })
	}()
	ask(t, l, ben, "GET", "/jobs/1?wait=20&seen="+j.Version, "").want(t, http.StatusOK, `"state":"running"`)
	ask(t, l, ben, "GET", "/jobs/1/log?wait=20", "").want(t, http.StatusOK, `"data":"aP9p"`, `"next":3`)
	ask(t, l, ada, "GET", "/jobs/1/log", "").want(t, http.StatusForbidden, "for its owner alone")
	ask(t, l, ada, "POST", "/jobs/1/again", "").want(t, http.StatusForbidden)
	ask(t, l, gus, "GET", "/jobs/1/log", "").want(t, http.StatusNotFound)
	l.Notebooks.Move(1, func(n *notebooks.Launch) {
		n.State, n.EndCode, n.Reason = notebooks.Ended, notebooks.EndExited, "Its program ended with exit code 3."
		n.Job.ExitCode = new(3)
	})
	ask(t, l, ben, "GET", "/jobs/1/log?from=3&wait=20", "").want(t, http.StatusOK, `"end":true`)
	ask(t, l, ben, "GET", "/jobs/1", "").want(t, http.StatusOK, `"state":"failed"`, `"exitCode":3`, `"endCode":"exited"`)
	again := read[job](t, ask(t, l, ben, "POST", "/jobs/1/again", "").want(t, http.StatusCreated))
	ask(t, l, ben, "DELETE", "/jobs/"+strconv.FormatInt(again.ID, 10), "").want(t, http.StatusOK, `"state":"cancelled"`)
	ask(t, l, ben, "DELETE", "/jobs/1", "").want(t, http.StatusOK, `"state":"failed"`)
	ask(t, l, ben, "POST", "/jobs", `{"command": ["x"], "retries": 11}`).want(t, http.StatusUnprocessableEntity, "retries")
	tried := read[job](t, ask(t, l, ben, "POST", "/jobs", `{"command": ["x"], "retries": 2}`).want(t, http.StatusCreated, `"try":1`, `"retries":2`))
	l.Notebooks.Move(tried.ID, func(n *notebooks.Launch) {
		n.Job.Tries = []notebooks.Try{{From: 1000, Until: 2000, EndCode: notebooks.EndExited, Reason: "So it ended.", ExitCode: new(3)}}
	})
	ask(t, l, ben, "GET", "/jobs/"+strconv.FormatInt(tried.ID, 10), "").want(t, http.StatusOK, `"try":2`, `"tries":[{"started":"1970-01-01T00:00:01Z","ended":"1970-01-01T00:00:02Z","endCode":"exited","reason":"So it ended.","exitCode":3}]`)
	follows := read[job](t, ask(t, l, ben, "POST", "/jobs", `{"command": ["x"], "after": "afterok:1,afterany:2"}`).want(t, http.StatusCreated, `"after":[{"job":1},{"job":2,"any":true}],"held":true`))
	l.Notebooks.Move(follows.ID, func(n *notebooks.Launch) { n.State, n.EndCode = notebooks.Ended, notebooks.EndDependency })
	if got := ask(t, l, ben, "GET", "/jobs/"+strconv.FormatInt(follows.ID, 10), "").want(t, http.StatusOK, `"state":"not run"`, `"endCode":"dependency"`); strings.Contains(got.body, "held") {
		t.Errorf("it has ended, and is held: %s", got.body)
	}
	log := ask(t, l, ada, "GET", "/audit?person=ben", "").want(t, http.StatusOK, "job.submit", "job.cancel", "job 1, profile gpu, 1 GPUs")
	if strings.Contains(log.body, "secret-plan") {
		t.Error("the log holds a name")
	}
}

// TestProfilesSayWhyNot: a profile says whether one would start now, waits, or cannot, and why.
func TestProfilesSayWhyNot(t *testing.T) {
	l := apitest.New(t)
	ada, ben := l.Token(t, "ada", users.ScopeFull), l.Token(t, "ben", users.ScopeRead)
	gpuProfile := func() (start, why string) {
		t.Helper()
		list := read[struct {
			Profiles []struct{ Slug, Start, Why string }
		}](t, ask(t, l, ben, "GET", "/profiles", "").want(t, http.StatusOK))
		for _, p := range list.Profiles {
			if p.Slug == "gpu" {
				return p.Start, p.Why
			}
		}
		t.Fatal("no GPU profile")
		return "", ""
	}
	if start, why := gpuProfile(); start != "now" || why != "" {
		t.Errorf("%s: %s", start, why)
	}
	for i := range l.GPUs[0].GPUs {
		l.GPUs[0].GPUs[i].Holders = []gpu.Holder{{PodRef: gpu.PodRef{UID: "x", User: "ada", Notebook: "secret-plan", Name: "jupyter-secret-plan"}, Since: time.Now()}}
	}
	if start, why := gpuProfile(); start != "waits" || why != "0 of 2 free." {
		t.Errorf("%s: %s", start, why)
	}
	for token, sees := range map[string]bool{ben: false, ada: true} {
		if got := ask(t, l, token, "GET", "/gpus", "").want(t, http.StatusOK, "gpu-box"); strings.Contains(got.body, "secret-plan") != sees {
			t.Errorf("sees a title on a GPU: %v, want %v", !sees, sees)
		}
	}
	if l.GPUs[0].GPUs[0].Holders[0].Notebook == "" {
		t.Error("the fleet's own snapshot was changed")
	}
	ask(t, l, ada, "PUT", "/quotas", `{"subject": "role:member", "kind": "gpus", "value": 0}`).want(t, http.StatusOK)
	if start, why := gpuProfile(); start != "never" || !strings.Contains(why, "Your quota allows no GPUs") {
		t.Errorf("%s: %s", start, why)
	}
	ask(t, l, l.Token(t, "ben", users.ScopeLaunch), "GET", "/me/quotas", "").want(t, http.StatusOK, `"from":"role:member"`, `"valueText":"0"`)
	ask(t, l, ada, "PUT", "/quotas", `{"subject": "role:member", "kind": "gpu-memory", "value": 1073741824}`).want(t, http.StatusOK)
	ask(t, l, l.Token(t, "ben", users.ScopeLaunch), "GET", "/me/quotas", "").want(t, http.StatusOK, `"kept":"measured, not enforced"`)
	l.GPUs = nil
	ask(t, l, ada, "GET", "/gpus", "").want(t, http.StatusOK, `"nodes":[]`)
}

// TestPeople: what an admin does with a person, and that a link for a password is made and works.
func TestPeople(t *testing.T) {
	l := apitest.New(t)
	ada := l.Token(t, "ada", users.ScopeFull)
	type made struct {
		User struct{ Handle, State, Role string }
		Link struct{ Link string }
	}
	m := read[made](t, ask(t, l, ada, "POST", "/users", `{"handle": "eva", "name": "Eva Ångström", "role": "guest"}`).want(t, http.StatusCreated))
	u, err := url.Parse(m.Link.Link)
	if err != nil || u.Host != "lab.example" || m.User.State != "invited" || m.User.Role != "guest" {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, err := l.Users.RedeemLink(t.Context(), u.Query().Get("token"), "", "", "seven grey old boats"); err != nil {
		t.Fatal(err)
	}
	ask(t, l, ada, "GET", "/users?q=angstrom", "").want(t, http.StatusOK, `"handle":"eva"`, `"state":"active"`)
	eva := l.Token(t, "eva", users.ScopeFull)
	ask(t, l, ada, "PATCH", "/users/eva", `{"role": "member", "email": "eva@example.org"}`).want(t, http.StatusOK, `"role":"member"`, "eva@example.org", "Eva Ångström")
	ask(t, l, ada, "PUT", "/groups/vision/members/eva", `{"lead": true}`).want(t, http.StatusOK, `"role":"lead"`)
	ask(t, l, eva, "GET", "/me", "").want(t, http.StatusOK, `"group":"vision"`, `"current":true`)
	ask(t, l, ada, "POST", "/users/eva/suspend", "").want(t, http.StatusOK, `"state":"suspended"`)
	ask(t, l, eva, "GET", "/me", "").want(t, http.StatusUnauthorized)
	ask(t, l, ada, "POST", "/users/eva/link", "").want(t, http.StatusConflict)
	ask(t, l, ada, "POST", "/users/eva/resume", "").want(t, http.StatusOK, `"state":"active"`)
	ask(t, l, ada, "DELETE", "/users/eva", "").want(t, http.StatusOK, `"state":"removed"`, `"purge"`)
	ask(t, l, ada, "GET", "/users?state=removed", "").want(t, http.StatusOK, `"handle":"eva"`)
	ask(t, l, ada, "POST", "/users/eva/undelete", "").want(t, http.StatusOK, `"state":"active"`)
	ask(t, l, ada, "POST", "/users/eva/undelete", "").want(t, http.StatusConflict)
	report := ask(t, l, ada, "POST", "/imports", `{"list": "name;email\nOne Person;one@example.org\nTwo Person;two@example.org\n", "group": "vision"}`).want(t, http.StatusOK, `"done":true`, `"new":2`, "https://lab.example/welcome?token=")
	if strings.Count(report.body, "welcome?token=") != 2 {
		t.Errorf("links: %s", report.body)
	}
	log := ask(t, l, ada, "GET", "/audit?limit=500", "").body
	for _, action := range []string{"user.add", "user.password-link", "user.role", "user.change", "group.member", "user.suspend", "user.resume", "user.remove", "user.undelete", "user.import"} {
		if !strings.Contains(log, `"action":"`+action+`"`) {
			t.Errorf("%s is not recorded", action)
		}
	}
}

// TestTokensOfOnesOwn: a password makes one, a token none; each may end itself.
func TestTokensOfOnesOwn(t *testing.T) {
	l := apitest.New(t)
	ask(t, l, "", "POST", "/tokens", `{"handle": "ben", "password": "a wrong password", "name": "x", "scope": "read"}`).want(t, http.StatusForbidden)
	type made struct {
		Secret string
		Token  struct{ ID int64 }
	}
	m := read[made](t, ask(t, l, "", "POST", "/tokens", `{"handle": "ben", "password": "`+apitest.Password("ben")+`", "name": "laptop", "scope": "read", "days": 7}`).want(t, http.StatusCreated))
	ask(t, l, m.Secret, "GET", "/me/tokens", "").want(t, http.StatusOK, `"name":"laptop"`, `"current":true`)
	ask(t, l, m.Secret, "POST", "/tokens", `{"name": "y", "scope": "full"}`).want(t, http.StatusUnprocessableEntity)
	ask(t, l, m.Secret, "DELETE", "/me/tokens/"+strconv.FormatInt(m.Token.ID, 10), "").want(t, http.StatusForbidden) // it may read only
	ask(t, l, m.Secret, "DELETE", "/me/token", "").want(t, http.StatusNoContent)
	ask(t, l, m.Secret, "DELETE", "/me/token", "").want(t, http.StatusUnauthorized)
	full := l.Token(t, "ben", users.ScopeFull)
	ask(t, l, full, "DELETE", "/me/tokens/999", "").want(t, http.StatusNotFound)
	ask(t, l, full, "POST", "/me/password", `{"old": "not this one at all", "new": "quite another long one"}`).want(t, http.StatusForbidden)
	ask(t, l, full, "POST", "/me/password", `{"old": "`+apitest.Password("ben")+`", "new": "short"}`).want(t, http.StatusUnprocessableEntity)
	ask(t, l, full, "POST", "/me/password", `{"old": "`+apitest.Password("ben")+`", "new": "quite another long one"}`).want(t, http.StatusNoContent)
}

// TestDevice: a program asks, somebody confirms, the program gets its token once.
func TestDevice(t *testing.T) {
	l := apitest.New(t)
	type code struct{ DeviceCode, UserCode, VerificationURIComplete string }
	c := read[code](t, ask(t, l, "", "POST", "/device", `{"client": "laptop", "scope": "launch", "days": 7}`).want(t, http.StatusCreated))
	if c.VerificationURIComplete != "https://lab.example/device?code="+c.UserCode {
		t.Errorf("%+v", c)
	}
	poll := func() answer { return ask(t, l, "", "POST", "/device/token", `{"deviceCode": "`+c.DeviceCode+`"}`) }
	poll().want(t, http.StatusAccepted, `"state":"pending"`)
	poll().want(t, http.StatusTooManyRequests)
	ben, err := l.Users.ByHandle(t.Context(), "ben")
	if err == nil {
		_, err = l.Users.DecideDevice(t.Context(), ben, c.UserCode, true, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	token := read[struct{ Token, Handle string }](t, poll().want(t, http.StatusOK, `"state":"approved"`))
	ask(t, l, token.Token, "GET", "/me", "").want(t, http.StatusOK, `"handle":"ben"`, `"scope":"launch"`)
	poll().want(t, http.StatusGone)
}

// A host that could not stand in a link is in none.
func TestHostInjection(t *testing.T) {
	l := apitest.New(t)
	ada := l.Token(t, "ada", users.ScopeFull)
	for _, host := range []string{"evil.example/x", "a b", "<script>", "lab.example:99999999", strings.Repeat("x", 300)} {
		got := ask(t, l, ada, "POST", "/users/ben/link", "", func(r *http.Request) { r.Host = host }).want(t, http.StatusCreated)
		if !strings.Contains(got.body, `"link":"/welcome?token=`) {
			t.Errorf("host %q: %s", host, got.body)
		}
	}
}

// TestEveryKindOfQuota: the API knows the kinds that there are.
func TestEveryKindOfQuota(t *testing.T) {
	l := apitest.New(t)
	ada := l.Token(t, "ada", users.ScopeFull)
	for _, k := range quota.Kinds() {
		ask(t, l, ada, "PUT", "/quotas", `{"subject": "everybody", "kind": "`+string(k)+`", "value": 3}`).want(t, http.StatusOK)
		ask(t, l, ada, "DELETE", "/quotas?subject=everybody&kind="+string(k), "").want(t, http.StatusNoContent)
	}
}
