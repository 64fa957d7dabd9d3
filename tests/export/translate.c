/* Translates lines of standard input with a SavedModel, through TensorFlow's
 * C API and its sessions, as TensorFlow Serving runs a model.
 *
 *   translate FOLDER TEXT_OPS INPUT OUTPUT INDEX
 *
 * FOLDER    the SavedModel
 * TEXT_OPS  the library of tensorflow_text with its operations
 * INPUT     the operation that takes text, OUTPUT and INDEX what gives it, as
 *           the signature names them
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorflow/c/c_api.h>
#include <tensorflow/c/tf_tstring.h>

static void check(const TF_Status *status, const char *doing) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s: %s\n", doing, TF_Message(status));
  exit(1);
}

static TF_Output output_of(TF_Graph *graph, const char *name, int index) {
  TF_Output found = {TF_GraphOperationByName(graph, name), index};
  if (found.oper == NULL) {
    fprintf(stderr, "the graph has no operation %s\n", name);
    exit(1);
  }
  return found;
}

int main(int count, char **arguments) {
  if (count != 6) {
    fprintf(stderr, "translate FOLDER TEXT_OPS INPUT OUTPUT INDEX\n");
    return 2;
  }
  TF_Status *status = TF_NewStatus();
  TF_LoadLibrary(arguments[2], status);
  check(status, "loading operations");

  const char *tags[] = {"serve"};
  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  TF_Session *session = TF_LoadSessionFromSavedModel(
      options, NULL, arguments[1], tags, 1, graph, NULL, status);
  check(status, "loading the model");
  TF_Output input = output_of(graph, arguments[3], 0);
  TF_Output output = output_of(graph, arguments[4], atoi(arguments[5]));

  char *line = NULL;
  size_t room = 0;
  ssize_t length;
  while ((length = getline(&line, &room, stdin)) > 0) {
    if (line[length - 1] == '\n') length--;
    int64_t one = 1;
    TF_Tensor *text = TF_AllocateTensor(TF_STRING, &one, 1, sizeof(TF_TString));
    TF_TString *given = TF_TensorData(text);
    TF_StringInit(given);
    TF_StringCopy(given, line, length);

    TF_Tensor *translation = NULL;
    TF_SessionRun(session, NULL, &input, &text, 1, &output, &translation, 1, NULL,
                  0, NULL, status);
    check(status, "translating");
    const TF_TString *found = TF_TensorData(translation);
    fwrite(TF_StringGetDataPointer(found), 1, TF_StringGetSize(found), stdout);
    putchar('\n');
    TF_StringDealloc(given);
    TF_DeleteTensor(text);
    TF_DeleteTensor(translation);
  }
  free(line);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
