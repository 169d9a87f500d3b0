// The keys under which browsers stored answers when a question was called after its page, "00_orientation.closing-quiz".
// A page may be renamed, so a question's name is now its own. Nothing is to be added here: a name that changes loses answers.

/** The questions whose names were not unique in the course. @type {Object<string, string>} */
const RENAMED = {
  "00_orientation.closing-quiz": "orientation-quiz",
  "01_attention_pooling.closing-quiz": "pooling-quiz",
  "02_scoring_functions.closing-quiz": "scores-and-masks-quiz",
  "03_multi_head_attention.closing-quiz": "heads-quiz",
  "04_self_attention.closing-quiz": "self-attention-quiz",
  "05_positional_encoding.closing-quiz": "positions-quiz",
  "06_what_heads_learn.closing-quiz": "learned-heads-quiz",
  "07_gpt.closing-quiz": "gpt-quiz",
  "07_gpt.train-question": "training-gap-question",
  "08_inside_a_transformer.closing-quiz": "training-and-controls-quiz",
  "08_what_heads_learn.closing-quiz": "learned-heads-quiz",
  "09_a_model_people_use.closing-quiz": "published-model-quiz",
  "appendix_bug_zoo.closing-quiz": "bugs-quiz",
  "appendix_framework_rosetta.quiz": "frameworks-quiz",
  "appendix_kernels.closing-quiz": "kernels-quiz",
  "appendix_mask_rosetta.closing-quiz": "mask-conventions-quiz",
  "appendix_training_and_controls.closing-quiz": "training-and-controls-quiz",
};

/** @param {string} key @returns {string} the key that a question has now; any other key as it is */
export const presentKey = (key) =>
  key.replace(/\/((?:\d\d_|appendix_)\w+|index)\.([\w-]+)$/, (_, page, name) => `/${RENAMED[`${page}.${name}`] ?? name}`);
