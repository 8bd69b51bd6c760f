"""The words of the report of a tuned run; see `words`."""

from __future__ import annotations

Pair = tuple[str, str]  # English, Chinese: both are HTML

TUNE_WORDS: dict[str, Pair] = {
    "nav.tuned": ("Tuning", "微调"),
    "tuned.title": ("What was trained", "训练了什么"),
    "tuned.intro": (
        "Tuned by <b>{method}</b>: {trained} of {total} numbers, {share}. The weights take "
        "{weights}; the gradients and AdamW's moments of what is trained take {memory} more, where "
        "training every weight would take {full}.",
        "微调方法：<b>{method}</b>。训练了 {total} 个数中的 {trained} 个，占 {share}。权重占 "
        "{weights}；被训练部分的梯度和 AdamW 动量另占 {memory}，若训练全部权重则需 {full}。",
    ),
    "tuned.layers.note": (
        "Numbers that are trained in each part of each layer; the darker, the larger their share "
        "of that part, in powers of ten. A dot: frozen. What an adapter adds counts where it sits.",
        "每层每个部件中被训练的数的个数；颜色越深，占该部件的比例越大（按数量级）。圆点：冻结。"
        "适配器新增的参数计入它所在的部件。",
    ),
    "tuned.column.norms": ("norms", "归一化"),
    "tuned.column.bottleneck": ("bottleneck", "瓶颈适配器"),
    "tuned.methods": ("What each method would train here", "各方法在此模型上训练多少"),
    "tuned.methods.intro": (
        "Other methods as they come, on the same model. Memory is what stands beside the weights "
        "for each trained number: its gradient and AdamW's two moments, {each} bytes in fp32; what "
        "the layers keep for the backward pass comes on top.",
        "其他方法均取默认设置，作用于同一模型。内存指权重之外、每个被训练的数所需的梯度与 AdamW "
        "两个动量（fp32 共 {each} 字节），不含反向传播所需的激活值。",
    ),
    "tuned.method": ("Method", "方法"),
    "tuned.what": ("What is trained", "训练的内容"),
    "tuned.numbers": ("Numbers", "个数"),
    "tuned.share": ("Share", "占比"),
    "tuned.memory": ("Memory", "内存"),
    "tuned.own": ("this run", "本次训练"),
    "method.full": ("every weight", "全部权重"),
    "method.lora": ("two thin matrices beside each matrix", "每个矩阵旁的两个低秩矩阵"),
    "method.bottleneck": ("two small matrices behind sub-layers", "子层之后的两个小矩阵"),
    "method.bitfit": ("the biases", "偏置"),
    "method.ia3": ("factors of keys, values and activations", "键、值和激活的缩放因子"),
    "method.prefix": ("keys and values before the text", "文本之前的键和值"),
    "method.prompt": ("vectors read before the tokens", "词元之前读入的向量"),
    "reward.title": ("Reward against divergence", "奖励与散度"),
    "reward.reward": ("Reward of held-out answers", "留出问题上回答的奖励"),
    "reward.reward.train": ("Reward in training", "训练中的奖励"),
    "reward.margin": ("Margin of the better answer", "更好回答的领先幅度"),
    "reward.unit": ("over the divergence from the reference", "随与参考模型的散度变化"),
    "reward.axis": ("KL", "KL 散度"),
    "reward.intro": (
        "Each dot is a validation, joined in the order of training from the hollow one to the "
        "large one. Up is better; to the right is further from the model that training began with.",
        "每个点是一次验证，按训练顺序相连，从空心点到大点。越靠上越好；越靠右，离训练前的模型越远。",
    ),
    "figure.reward": ("Reward", "奖励"),
    "figure.length": ("Tokens of an answer", "回答的词元数"),
    "figure.cut": ("Answers without an end", "未结束的回答比例"),
    "figure.win_rate": ("Win rate", "胜率"),
    "chart.spread": ("Spread of rewards in a group", "组内奖励的标准差"),
    "chart.clipped": ("Clipped", "被截断的比例"),
    "chart.share.tokens": ("share of the tokens", "占词元的比例"),
    "chart.entropy": ("Entropy", "熵"),
    "chart.entropy.unit": ("nats per token", "奈特/词元"),
    "chart.value": ("Loss of the value", "价值函数的损失"),
    "chart.explained": ("Explained by the value", "价值函数解释的比例"),
    "chart.explained.unit": ("of the spread of returns, 1 is all", "占回报方差的比例，1 为全部"),
    "chart.price": ("Price of divergence", "散度的代价"),
    "js.far": ("KL {n}", "KL {n}"),
    "examples.compare.own": (
        "Held-out questions: what the model answered before the training, and what it answers now "
        "(each time the likeliest token).",
        "以下问题均未用于训练：模型训练前的回答与训练后的回答（每步取概率最大的词元）。",
    ),
    "wins.title": ("Who wins", "胜负"),
    "wins.judge": ("judged by {judge}", "由 {judge} 评判"),
    "wins.won": ("{n} won", "胜 {n}"),
    "wins.tied": ("{n} tied", "平 {n}"),
    "wins.lost": ("{n} lost", "负 {n}"),
    "wins.told": (
        "Win rate of the new answers: {rate} of {n} held-out questions (a tie is half a win). Mean "
        "reward before: {before}; after: {after}.",
        "新回答的胜率：{rate}（共 {n} 个留出问题，平局计半胜）。平均奖励：训练前 {before}，"
        "训练后 {after}。",
    ),
    "wins.reward": ("reward {value}", "奖励 {value}"),
}
