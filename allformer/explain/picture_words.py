"""The words of the report of a model that sees; see `words`."""

from __future__ import annotations

from allformer.explain.run_words import Pair

PICTURE_WORDS: dict[str, Pair] = {
    # --- what was taught ---
    "title.image-classification": (
        "A Transformer learned to tell pictures apart",
        "一个 Transformer 学会了给图片分类",
    ),
    "title.contrastive": (
        "Two Transformers learned which words go with which picture",
        "两个 Transformer 学会了把文字和图片对应起来",
    ),
    "title.detection": (
        "A Transformer learned to find things in pictures",
        "一个 Transformer 学会了在图片中找出物体",
    ),
    "title.segmentation": (
        "A Transformer learned what each pixel belongs to",
        "一个 Transformer 学会了判断每个像素属于什么",
    ),
    "title.image-codec": (
        "A codec learned to write pictures as tokens",
        "一个编解码器学会了把图片写成词元",
    ),
    "title.text-to-image": (
        "A Transformer learned to draw what a caption says",
        "一个 Transformer 学会了按文字画图",
    ),
    "lead.sees": (
        "A picture of {height} × {width} pixels is cut into {rows} × {columns} patches of {patch} "
        "× {patch}; each becomes a token, and every token sees every other. {shape}",
        "一张 {height} × {width} 像素的图片被切成 {rows} × {columns} 个 {patch} × {patch} 的图块，"
        "每块成为一个词元，词元两两可见。{shape}",
    ),
    "lead.shape.sees": (
        "It has {layers}, vectors of {dim} numbers and {heads}.",
        "共 {layers}，向量维度 {dim}，{heads}。",
    ),
    "lead.backbone": (
        "A network of convolutions makes a grid of features of a picture; an encoder of {encoder} "
        "reads them, and a decoder of {decoder} looks for things. Vectors of {dim} numbers, "
        "{heads}.",
        "卷积网络把图片变成一格格特征，编码器 {encoder}来读，解码器 {decoder}去找物体。"
        "向量维度 {dim}，{heads}。",
    ),
    "lead.towers": (
        "Two towers that never see each other: one reads texts, one reads pictures, and what "
        "belongs together shall point the same way. {shape}",
        "两座互不相见的塔：一座读文字，一座读图片；相配的文字和图片，向量应指向同一方向。{shape}",
    ),
    "lead.codec": (
        "A codec writes a picture as a small grid of tokens and paints it again from them: "
        "convolutions, no attention. What draws from captions says such tokens.",
        "编解码器把图片写成一小格一小格的词元，再由词元还原成图片：用的是卷积，没有注意力。"
        "按文字画图的模型说出的正是这些词元。",
    ),
    # --- pictures ---
    "pictures.labels": (
        "Held-out pictures that the model did not learn from, with what it said of them and how "
        "sure it was.",
        "以下图片均未用于训练，下方是模型的回答和把握。",
    ),
    "pictures.boxes": (
        "Held-out pictures that the model did not learn from. Dashed boxes are the true ones, "
        "solid ones those that it found, with how sure it was.",
        "以下图片均未用于训练。虚线框是真实位置，实线框是模型找到的，并注明把握。",
    ),
    "pictures.masks": (
        "Held-out pictures that the model did not learn from: what each pixel belongs to, and what "
        "the model says that it belongs to.",
        "以下图片均未用于训练：每个像素真正属于什么，以及模型认为它属于什么。",
    ),
    "pictures.again": (
        "Held-out pictures, and what is left of them when they are written as tokens and read "
        "back.",
        "以下图片均未用于训练：左为原图，右为编成词元再解码的结果。",
    ),
    "pictures.drawn": (
        "Captions, and what the model drew for them, token by token. Nothing was picked by hand.",
        "给出文字，模型逐个词元画出图片。结果未经人工挑选。",
    ),
    "pictures.judged": (
        "an independent classifier finds it in {right} of {drawn}",
        "独立的分类器在 {drawn} 张中认出 {right} 张",
    ),
    "pictures.more": ("{n} more pictures", "再看 {n} 张"),
    "pictures.wanted": ("is: {wanted}", "应为：{wanted}"),
    "pictures.missed": ("{n} not found", "漏掉 {n} 个"),
    "pictures.score.mask": ("{score} of the pixels right", "像素正确率 {score}"),
    "pictures.score.again": ("error {score}", "误差 {score}"),
    "pictures.score.other": ("score {score}", "得分 {score}"),
    "pictures.view.picture": ("picture", "图片"),
    "pictures.view.mask": ("true", "真实"),
    "pictures.view.found_mask": ("found", "模型"),
    "pictures.view.again": ("read back", "还原"),
    # --- attention over pictures ---
    "looks.intro.cls": (
        "What the model says of a picture, it reads off one token, <b>[CLS]</b>: this is where "
        "that token looks.",
        "模型对整张图的判断取自一个词元 <b>[CLS]</b>：下面是它在看哪里。",
    ),
    "looks.intro.behind": (
        "What is found is read off tokens that stand behind the patches: this is where they look, "
        "in their mean.",
        "找到的物体取自排在图块之后的词元：下面是它们平均在看哪里。",
    ),
    "looks.intro.patches": (
        "Nothing is read off one token: the patches speak for themselves, and this is where they "
        "look, in their mean.",
        "判断并不取自某一个词元，而取自各图块：下面是它们平均在看哪里。",
    ),
    "looks.veil": (
        "The veil shows how attention is spread over the patches: yellow where it is largest, "
        "purple where there is next to none. Each map is scaled to its own largest value.",
        "彩色蒙层表示注意力在各图块上的分布：黄色最大，紫色几乎为零。每张图各按自身的最大值缩放。",
    ),
    "looks.rollout.about": (
        "<b>Rollout</b> follows attention through all layers: each layer’s map, averaged over "
        "heads and mixed half and half with what passes by on the residual path, times that of the "
        "layer before (Abnar and Zuidema, 2020).",
        "<b>Rollout</b> 把注意力逐层相乘：每层对各头取平均，与残差通路各占一半，"
        "再乘以前一层的结果（Abnar 和 Zuidema，2020）。",
    ),
    "looks.rollout": ("rollout, all layers", "rollout（全部各层）"),
    "looks.last": ("last layer, mean of heads", "最后一层，各头平均"),
    "looks.all": ("{layers}, {heads} each", "全部 {layers}，各 {heads}"),
    "looks.careful": (
        "Weights show where a head reads, not by themselves why the model answers as it does; some "
        "heads rest on a corner of the background when there is nothing to fetch.",
        "权重只说明一个头在读哪里，并不能单独解释模型为何这样回答；"
        "没有信息要取时，有的头会停在背景的角落。",
    ),
    "looks.none": (
        "There is no picture here to look at, or no layer that weighs patches.",
        "没有可供观察的图片，或没有给图块分配权重的层。",
    ),
    # --- positions ---
    "places.heading": ("How it knows where things are", "位置编码：它如何知道位置"),
    "places.intro": (
        "Attention by itself sees a bag of patches. What tells it where each lies is a vector for "
        "each position, added to the patch.",
        "注意力本身看到的只是一袋没有顺序的图块。每个图块在哪里，由加在它上面的位置向量说明。",
    ),
    "places.learned": (
        "Here they are learned, one for each of {rows} × {columns} places: nobody told the model "
        "which places are neighbours.",
        "这里的位置向量是学出来的，{rows} × {columns} 个位置各一个：没有人告诉模型哪些位置相邻。",
    ),
    "places.computed": (
        "Here they are computed: sines and cosines of the column in one half, of the row in the "
        "other.",
        "这里的位置向量是算出来的：一半是列号的正弦与余弦，另一半是行号的。",
    ),
    "places.title": ("Which places are alike", "哪些位置彼此相似"),
    "places.note": (
        "{rows} × {columns} small maps, each at the place of its patch: the cosine of that patch’s "
        "position vector with those of all patches. Where a model has learned the plane, each map "
        "is brightest around its own place, and its row and column shine too (Dosovitskiy et al., "
        "2021, figure 7).",
        "{rows} × {columns} 张小图，各在其图块的位置上：该图块的位置向量与所有图块位置向量的余弦。"
        "学会了平面结构的模型，每张小图在自己的位置最亮，同行同列也较亮"
        "（Dosovitskiy 等，2021，图 7）。",
    ),
    # --- several models on one page ---
    "several.more": (
        "All of this model: curves, layers, architecture, parameters",
        "这个模型的完整报告：曲线、各层、结构、参数",
    ),
    "several.places": ("What it knows of places", "它对位置的认识"),
    # --- architecture and cost ---
    "architecture.intro.sees": (
        "Read from the bottom up. Beside each arrow stands the shape of what flows there: "
        "<var>B</var> pictures in a batch, <var>T</var> tokens: the patches and those before them.",
        "自下而上读。箭头旁标的是流经张量的形状：<var>B</var> 为批内图片数，"
        "<var>T</var> 为词元数，即图块和排在它们前面的词元。",
    ),
    "diagram.pixels": ("pixels", "像素"),
    "diagram.patches": ("Patches", "图块"),
    "diagram.patches.size": (
        "{patch} × {patch} pixels → {dim}",
        "{patch} × {patch} 像素 → {dim}",
    ),
    "diagram.front": ("{n} tokens before them", "前面有 {n} 个词元"),
    "diagram.front.cls": ("[CLS] before them", "前面加 [CLS]"),
    "diagram.text": ("Text", "文字"),
    "diagram.vision": ("Vision", "图像"),
    "diagram.vector": ("Vector", "向量"),
    "diagram.compared": ("compared by their cosine", "以余弦比较"),
    "growth.intro.sees": (
        "Forward operations for one patch in pictures of so many patches. Comparing every patch "
        "with every other grows with their number; the rest stays as it is.",
        "处理一个图块的前向计算量。图块两两比较的开销随图块数增长，其余部分不变。",
    ),
    "growth.title.sees": ("What the work is spent on as pictures grow", "图片变大，计算花在哪里"),
    "side.text": ("Text ", "文字"),
    "side.vision": ("Vision ", "图像"),
    "part.convolutions": ("convolutions", "卷积"),
    "part.projection": ("projection", "投影"),
    "part.queries": ("queries", "查询"),
    "part.classes": ("classes", "类别"),
    "part.boxes": ("boxes", "边框"),
    "part.masks": ("masks", "掩码"),
    "part.labels": ("labels", "标签"),
    "part.in": ("input", "输入投影"),
    "part.out": ("output", "输出投影"),
    "part.norm": ("norm", "归一化"),
    "part.layer scales": ("layer scales", "层缩放"),
    "part.upscaling": ("upscaling", "放大"),
    "part.positions between layers": ("positions between layers", "层间位置编码"),
    "part.image vector norm": ("Image vector norm", "图片向量归一化"),
    "part.image vector probe": ("Image vector probe", "图片向量探针"),
    "part.patches": ("patches", "图块"),
    "part.extra tokens": ("extra tokens", "额外词元"),
    "part.text vector": ("Text vector", "文字向量"),
    "part.image vector": ("Image vector", "图片向量"),
    "part.scale": ("Scale", "比例"),
    "part.scale and bias": ("Scale and bias", "比例与偏置"),
    # --- figures and next steps ---
    "card.pictures.unit": ("pictures/s", "张/秒"),
    "chart.pictures.unit": ("pictures per second", "张/秒"),
    "facts.pictures": ("Pictures of a step", "每步图片数"),
    "figure.top5": ("Right among the first five", "前五命中率"),
    "figure.map": ("Mean average precision", "平均精度均值"),
    "figure.map50": ("Mean average precision at 0.5", "平均精度均值（IoU 0.5）"),
    "figure.map75": ("Mean average precision at 0.75", "平均精度均值（IoU 0.75）"),
    "figure.image_accuracy": ("Picture tokens that are right", "图片词元准确率"),
    "figure.codes_perplexity": ("Perplexity of the codes", "码字困惑度"),
    "figure.mean_iou": ("Mean IoU", "平均交并比"),
    "figure.pixel_accuracy": ("Pixels that are right", "像素准确率"),
    "figure.mse": ("Squared error", "均方误差"),
    "figure.psnr": ("Peak signal to noise, dB", "峰值信噪比（dB）"),
    "figure.codes_used": ("Codes in use", "用到的码字"),
    "next.again": ("Train it again, or change its recipe", "再训练一次，或修改配方"),
    "next.classify-image": ("Classify a picture", "给一张图片分类"),
    "next.zero-shot": ("Classify by words that you choose", "用自己写的词给图片分类"),
    "next.search": ("Search a folder of pictures", "在文件夹里搜图"),
    "next.embed-image": ("Turn pictures into vectors", "把图片变成向量"),
    "next.detect": ("Find things in a picture", "找出图片中的物体"),
    "next.segment": ("Segment a picture", "分割一张图片"),
    "next.draw": ("Draw from a caption", "按文字画图"),
}
