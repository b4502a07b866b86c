package webui_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/webui"
)

// inTheAPI says of every page and form by which operations of the HTTP API a program does or reads the same, or after
// "browser: " why that is for people with a browser alone. It is written out by hand: a page that is new fails here until
// the API has what it does.
var inTheAPI = map[string]string{
	"GET /login":                       "browser: a program signs in with a token",
	"POST /login":                      "createToken",
	"POST /logout":                     "revokeThisToken",
	"GET /setup":                       "browser: a one-time link is opened by a person",
	"POST /setup":                      "browser: a one-time link is opened by a person",
	"GET /welcome":                     "browser: a one-time link is opened by a person",
	"POST /welcome":                    "browser: a one-time link is opened by a person",
	"GET /handle/check":                "createUser",
	"POST /signin/{provider}":          "browser: providers send browsers back",
	"GET /signin/{provider}/callback":  "browser: providers send browsers back",
	"POST /signin/{provider}/callback": "browser: providers send browsers back",
	"GET /other-session":               "browser: it is about a browser's own cookies",
	"GET /handle/choose":               "browser: providers send browsers back",
	"POST /handle/choose":              "browser: providers send browsers back",
	"GET /join":                        "browser: a link is opened by a person",
	"POST /join":                       "browser: a link is opened by a person",
	"GET /signup":                      "browser: people ask for accounts, not programs",
	"POST /signup":                     "browser: people ask for accounts, not programs",
	"GET /trust":                       "browser: it is about browsers",
	"GET /ca.crt":                      "browser: a download, which programs can fetch there",
	"GET /cli/{file}":                  "browser: a download, which programs can fetch there",
	"GET /api":                         "browser: programs read openapi.json",
	"GET /cli":                         "browser: it explains",
	"GET /design":                      "browser: it explains",
	"GET /network":                     "browser: it tries this browser's own connection",
	"GET /device":                      "browser: a person confirms a program, never another program",
	"POST /device":                     "browser: a person confirms a program, never another program",
	"GET /{$}":                         "listProfiles listNotebooks listGPUs listMyQuotas getMyHome",
	"GET /gpus":                        "listGPUs",
	"POST /gpu-check":                  "checkGPU",
	"GET /gpus/{uuid}":                 "listGPUs listGPUEvents",
	"POST /gpus/{uuid}/lend":           "lendGPU",
	"GET /gpus/{uuid}/curves":          "getGPUHistory",
	"GET /use":                         "listUse listMyUse listReclaims",
	"GET /events":                      "getNotebook getJob listGPUs",
	"GET /report":                      "getReport",
	"GET /report.csv":                  "getReport",
	"POST /launch":                     "launchNotebook",
	"GET /launches/{id}":               "getNotebook",
	"POST /launches/{id}/stop":         "stopNotebook",
	"POST /launches/{id}/cancel":       "stopNotebook",
	"POST /launches/{id}/keep":         "keepNotebook",
	"POST /launches/{id}/free":         "freeNotebook",
	"GET /jobs":                        "listJobs",
	"POST /jobs":                       "submitJob",
	"POST /jobs/notebook":              "submitJob",
	"GET /jobs/{id}":                   "getJob readJobLog listJobTasks",
	"GET /jobs/{id}/log":               "readJobLog",
	"POST /jobs/{id}/cancel":           "cancelJob cancelJobTask",
	"POST /jobs/{id}/again":            "runJobAgain",
	"GET /services":                    "listServices",
	"POST /services":                   "startService",
	"POST /services/tensorboard":       "startService",
	"GET /services/{id}":               "getService",
	"GET /services/{id}/log":           "readServiceLog",
	"POST /services/{id}/share":        "shareService",
	"POST /services/{id}/keep":         "keepService",
	"POST /services/{id}/restart":      "restartService",
	"POST /services/{id}/again":        "startServiceAgain",
	"POST /services/{id}/stop":         "stopService",
	"GET /users":                       "listUsers",
	"POST /users":                      "createUser",
	"POST /users/{handle}/link":        "createPasswordLink",
	"POST /users/{handle}/remove":      "removeUser",
	"GET /users/{handle}":              "getUser listUserQuotas listUserUse listUserIdentities getUserHome listNotebooks",
	"POST /users/{handle}":             "changeUser",
	"POST /users/{handle}/suspend":     "suspendUser",
	"POST /users/{handle}/resume":      "resumeUser",
	"POST /users/{handle}/undelete":    "undeleteUser",
	"POST /users/{handle}/identities/{id}/unlink": "unlinkUserIdentity",
	"POST /users/{handle}/role-by-rules":          "roleByRules",
	"GET /groups":                                 "listGroups",
	"POST /groups":                                "createGroup",
	"GET /groups/{group}":                         "getGroup",
	"POST /groups/{group}/remove":                 "removeGroup",
	"POST /memberships":                           "setMember",
	"POST /memberships/remove":                    "removeMember",
	"GET /quotas":                                 "listQuotas listGrants",
	"POST /quotas":                                "setQuota unsetQuota",
	"POST /quotas/grants":                         "grant",
	"POST /quotas/grants/{id}/end":                "endGrant",
	"GET /environments":                           "listEnvironments listEnvironmentOffers getEnvironmentBuild",
	"POST /environments":                          "createEnvironment",
	"POST /environments/cancel":                   "cancelEnvironmentBuild",
	"POST /environments/default":                  "setDefaultEnvironment",
	"POST /environments/import":                   "importEnvironment",
	"GET /environments/{name}/{version}":          "getEnvironment",
	"GET /environments/{name}/{version}/lock":     "getEnvironmentLock",
	"GET /environments/{name}/{version}/file":     "exportEnvironment",
	"POST /environments/{name}/{version}/remove":  "removeEnvironment",
	"GET /folders":                                "listFolders getMyHome",
	"POST /folders":                               "createFolder",
	"GET /folders/{name}":                         "getFolder",
	"POST /folders/{name}":                        "changeFolder",
	"POST /folders/{name}/delete":                 "deleteFolder",
	"POST /folders/{name}/undelete":               "undeleteFolder",
	"POST /home/clear":                            "clearMyHome",
	"GET /users/import":                           "importUsers",
	"POST /users/import":                          "importUsers",
	"GET /requests":                               "listSignUps",
	"POST /requests/{id}/approve":                 "approveSignUp",
	"POST /requests/{id}/decline":                 "declineSignUp",
	"GET /invitations":                            "listInvitations",
	"POST /invitations":                           "invite",
	"POST /invitations/{id}/revoke":               "revokeInvitation",
	"GET /account":                                "getMe listMySessions listMyTokens listMySSHKeys listMyFileConnections listMyIdentities getFiles getMyMail",
	"POST /account/profile":                       "changeMe",
	"POST /account/mail":                          "changeMyMail",
	"GET /mail":                                   "getMail",
	"POST /mail/test":                             "testMail",
	"POST /account/password":                      "changePassword",
	"POST /account/sessions/{id}/end":             "endMySession",
	"POST /account/sessions/end-others":           "endMySessions",
	"POST /account/tokens":                        "createToken",
	"POST /account/tokens/{id}/revoke":            "revokeMyToken",
	"GET /account/identities/{provider}":          "listMyIdentities",
	"POST /account/identities/{provider}/link":    "browser: the provider has to see who asks",
	"POST /account/identities/{id}/unlink":        "unlinkMyIdentity",
	"POST /account/ssh-keys":                      "addMySSHKey",
	"POST /account/ssh-keys/{id}/remove":          "removeMySSHKey",
	"POST /account/files/close":                   "closeMyFileConnections",
	"GET /audit":                                  "listAudit",
	"POST /audit/export":                          "exportAudit",
	"GET /status":                                 "getStatus",
	"GET /tailnet":                                "getTailnet",
	"POST /tailnet/up":                            "turnTailnetOn",
	"POST /tailnet/down":                          "turnTailnetOff",
	"GET /tailnet/funnel":                         "getTailnet",
	"GET /tailnet/funnel/open":                    "browser: opening the lab to the internet takes a person",
	"POST /tailnet/funnel/open":                   "browser: opening the lab to the internet takes a person",
	"POST /tailnet/funnel/close":                  "closeFunnel",
	"POST /tailnet/logout":                        "leaveTailnet",
	"GET /machines":                               "listMachines",
	"POST /machines/invite":                       "inviteMachine",
	"POST /machines/invitations/{code}/withdraw":  "withdrawMachineInvitation",
	"POST /machines/requests/{number}/accept":     "acceptMachine",
	"POST /machines/requests/{number}/refuse":     "refuseMachine",
	"POST /machines/cordon":                       "cordonMachine drainMachine",
	"POST /machines/limit":                        "limitMachine unlimitMachine",
	"POST /machines/placing":                      "placeNotebooks",
	"POST /machines/rename":                       "renameMachine",
	"POST /machines/{machine}/uncordon":           "uncordonMachine",
	"POST /machines/{machine}/keep":               "keepMachine",
	"POST /machines/{machine}/remove":             "removeMachine",
}

func TestEverythingOnPagesIsInTheAPI(t *testing.T) {
	var operations []string
	for _, o := range apitest.New(t).API.Operations() {
		operations = append(operations, o.ID)
	}
	routes := map[string]bool{}
	for _, rt := range newLab(t).pages.Routes() {
		route := rt[0] + " " + rt[1]
		routes[route] = true
		same, listed := inTheAPI[route]
		switch {
		case !listed || same == "":
			t.Errorf("%s is on the pages; by which operation of the API does a program do it?", route)
		case strings.HasPrefix(same, "browser: "):
		default:
			for _, id := range strings.Fields(same) {
				if !slices.Contains(operations, id) {
					t.Errorf("%s: there is no operation %s", route, id)
				}
			}
		}
	}
	for route := range inTheAPI {
		if !routes[route] {
			t.Errorf("%s is no page any more", route)
		}
	}
}

// TestAPIPage: the page has every operation, with where it is, what it takes and answers, and an example.
func TestAPIPage(t *testing.T) {
	l := newLab(t)
	got := l.client(t, "").get("/api")
	got.want(t, http.StatusOK, "Begin", "/api/v1/openapi.json", "problem details",
		// one operation in full
		`id="createFolder"`, "/api/v1/folders", "Make a shared folder", "admins and leads", "One of group, hand-in, dataset, host.", "needed", "list of string", "Whom it is for",
		`curl -X DELETE -H &#34;Authorization: Bearer $GPULAB_TOKEN&#34;`, "/api/v1/me/home/files?path=checkpoints/old", "/api/v1/users/ada/home", "no token needed", "launch or more")
	for _, o := range apitest.New(t).API.Operations() {
		if !strings.Contains(got.body, `id="`+o.ID+`"`) {
			t.Errorf("%s is not on the page", o.ID)
		}
	}
	if n := len(regexp.MustCompile(`<details class="fold api"`).FindAllString(got.body, -1)); n != len(apitest.New(t).API.Operations()) {
		t.Errorf("%d operations on the page", n)
	}
	for _, bad := range []string{"&lt;nil&gt;", "%!", "map[", "null"} {
		if strings.Contains(got.body, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	t.Logf("the page has %d bytes", len(got.body))
	l.client(t, "ben").get("/account").want(t, http.StatusOK, `href="/api"`)
	newLabWith(t, func(c *webui.Config) { c.API = nil }).client(t, "ben").get("/api").want(t, http.StatusNotFound)
}
